"""The data directory from outside: who serves it, what its record is worth, and starting a server exactly
once."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quarterdeck.client import autostart, discovery, file_locks
from quarterdeck.client.api import ApiClient
from quarterdeck.client.data_dir import DataDir, resolve_data_dir, socket_path
from quarterdeck.client.discovery import ServerLocation
from quarterdeck.client.http_sync import Connection
from quarterdeck.client.http_types import Address, Unreachable, parse_address
from quarterdeck.client.socket_peer import listener_pid, listener_uid
from quarterdeck.core.errors import Unauthenticated
from quarterdeck.server_process import socket_path as socket_of_server
from tests.cli.cli_support import Qd, http_response, install_fake_server, run_scripted_server

NO_ZONES = '{"items": []}\n'


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    (tmp_path / "data").mkdir()
    return DataDir(str(tmp_path / "data"))


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory with a short name: the path of a socket must be one."""
    with tempfile.TemporaryDirectory(prefix="qd-") as folder:
        yield Path(folder)


@pytest.fixture
def qd(tmp_path: Path, short_directory: Path) -> Iterator[Qd]:
    """`qd`, where what it starts is the stand-in."""
    program = Qd(tmp_path / "data", STAND_IN_SOCKET=str(short_directory / "qd.sock"))
    program.environment["PYTHONPATH"] = str(install_fake_server(tmp_path))
    yield program
    program.end_server()


@contextmanager
def held(path: str) -> Iterator[None]:
    """Somebody else holds the lock: flocks belong to the open file, so another opening of it will do."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def holder(path: str) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the lock until its stdin is closed."""
    script = "import fcntl,os,sys; d=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT); fcntl.flock(d,fcntl.LOCK_EX)"
    script += "; print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def write_record(place: DataDir, **told: object) -> None:
    Path(place.path, "server.json").write_text(json.dumps(told))


def redirect(server: ApiClient, url: str) -> None:
    """Lets a test see what would have been sent to an address that is not there."""
    server.connection = Connection(parse_address(url), 10)


def refuse_to_speak(text: str) -> None:
    raise AssertionError(f"nothing was to be started, but: {text}")


def test_the_directory_is_the_flag_then_the_variable_then_the_users_own() -> None:
    environ = {"QD_DATA": "/from/variable", "XDG_DATA_HOME": "/xdg"}
    assert resolve_data_dir("/from/flag", environ).path == "/from/flag"
    assert resolve_data_dir(None, environ).path == "/from/variable"
    if sys.platform == "linux":
        assert resolve_data_dir(None, {"XDG_DATA_HOME": "/xdg"}).path == "/xdg/quarterdeck"
        assert resolve_data_dir(None, {"XDG_DATA_HOME": "not/absolute"}).path.endswith("/.local/share/quarterdeck")


def test_a_relative_directory_is_made_absolute_because_the_server_stands_elsewhere() -> None:
    assert resolve_data_dir("here", {}).path == str(Path.cwd() / "here")


def test_the_socket_has_one_short_name_by_whichever_path_the_directory_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 40) / "data"
    deep.mkdir(parents=True)
    (tmp_path / "link").symlink_to(deep)
    environ = {"XDG_RUNTIME_DIR": "/run/user/1"}
    name = socket_path(DataDir(str(deep)), environ)
    assert name == socket_path(DataDir(str(tmp_path / "link")), environ)
    assert name.startswith("/run/user/1/qd-")
    assert len(name) == len("/run/user/1/qd-") + 12 + len(".sock")
    assert f"quarterdeck-{os.getuid()}/qd-" in socket_path(DataDir(str(deep)), {})


@pytest.mark.parametrize("runtime", ["/run/user/1", "not/absolute", ""])
def test_server_and_client_agree_on_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    path = socket_path(DataDir(str(tmp_path)), {"XDG_RUNTIME_DIR": runtime})
    assert str(socket_of_server(tmp_path)) == path
    assert path.startswith("/run/user/1/" if runtime == "/run/user/1" else "/")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": "x", "url": 5}'])
def test_a_record_that_is_none_stops_nobody(data_dir: DataDir, text: str) -> None:
    Path(data_dir.path, "server.json").write_text(text)
    record = data_dir.read_record()
    assert record is None or (record.pid, record.url) == (0, "")


def test_only_the_lock_says_whether_a_server_runs(data_dir: DataDir) -> None:
    write_record(data_dir, pid=os.getpid(), url="http://127.0.0.1:1", socket="/nowhere")
    assert not data_dir.has_running_server(), "the pid of the record lives, and is somebody else's"
    with held(data_dir.server_lock):
        assert data_dir.has_running_server()
    assert not data_dir.has_running_server()


def test_waiting_for_a_lock_ends_when_its_holder_ends(data_dir: DataDir) -> None:
    with holder(data_dir.server_lock) as process:
        assert not file_locks.wait_until_free(data_dir.server_lock, 0.05)
        process.kill()
        assert file_locks.wait_until_free(data_dir.server_lock, 10)


def test_a_lock_that_cannot_be_had_in_time_is_a_timeout(data_dir: DataDir) -> None:
    with held(data_dir.start_lock), pytest.raises(TimeoutError), file_locks.lock_exclusive(data_dir.start_lock, 0.05):
        raise AssertionError("it was held")


def test_waiting_for_a_lock_puts_back_the_timer_that_was_there(data_dir: DataDir) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    left, interval = signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with file_locks.lock_exclusive(data_dir.start_lock, 5):
            pass
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)


def test_an_address_that_was_given_is_used_and_nothing_is_started(data_dir: DataDir) -> None:
    server = discovery.connect_server(ServerLocation(data=data_dir.path, url="http://127.0.0.1:9"), {}, refuse_to_speak)
    assert str(server.address) == "http://127.0.0.1:9"
    server = discovery.connect_server(
        ServerLocation(data=data_dir.path), {"QD_URL": "http://127.0.0.1:9"}, refuse_to_speak
    )
    assert str(server.address) == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("url", "named", "sent"),
    [
        ("http://127.0.0.1:4000", False, True),
        ("http://localhost:4000/", False, True),
        ("http://127.0.0.1:4001", False, False),
        ("https://quarterdeck.example", False, False),
        ("https://quarterdeck.example", True, True),
    ],
)
def test_the_admin_token_goes_to_its_own_server_or_where_it_was_sent_on_purpose(
    data_dir: DataDir, url: str, named: bool, sent: bool
) -> None:
    write_record(data_dir, pid=1, url="http://127.0.0.1:4000", socket="/nowhere")
    Path(data_dir.path, "admin-token").write_text("secret\n")
    where = ServerLocation(url=url, data=data_dir.path if named else None)
    with run_scripted_server(http_response(200, {})) as listening:
        server = discovery.client_for_url(where, {"QD_DATA": data_dir.path}, url)
        redirect(server, listening.url)
        if sent:
            server.get("/zones")
            assert b"Authorization: Bearer secret\r\n" in listening.requests[0]
        else:
            with pytest.raises(Unauthenticated):
                server.get("/zones")
            assert listening.connections == 0


def test_a_token_that_was_given_is_used_everywhere(data_dir: DataDir) -> None:
    for where, environ in ((ServerLocation(token="t"), {}), (ServerLocation(), {"QD_TOKEN": "t"})):
        with run_scripted_server(http_response(200, {})) as listening:
            server = discovery.client_for_url(where, environ, "https://quarterdeck.example")
            redirect(server, listening.url)
            server.get("/zones")
            assert b"Authorization: Bearer t\r\n" in listening.requests[0]


@contextmanager
def listening_at(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


SOMEBODY_ELSE = 54_321


def test_a_socket_of_another_user_is_told_of_and_sent_nothing(
    data_dir: DataDir, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening_at(short_directory / "qd.sock") as listener:
        write_record(data_dir, pid=1, url="", socket=str(short_directory / "qd.sock"))
        Path(data_dir.path, "admin-token").write_text("secret\n")
        assert discovery.connect_data_dir(ServerLocation(), {}, data_dir) is not None, "it is our own"
        listener.accept()[0].close()
        monkeypatch.setattr(discovery, "listener_uid", lambda connection: SOMEBODY_ELSE)
        with pytest.raises(Unreachable, match=rf"another user \(uid {SOMEBODY_ELSE}\)") as told:
            discovery.connect_server(ServerLocation(data=data_dir.path), {}, refuse_to_speak)
        assert str(short_directory / "qd.sock") in told.value.detail
        connection = listener.accept()[0]
        connection.settimeout(10)
        with connection:
            assert connection.recv(1) == b"", "the connection was closed without a byte"


def test_a_socket_of_root_or_of_the_directorys_owner_is_trusted(
    data_dir: DataDir, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening_at(short_directory / "qd.sock"):
        write_record(data_dir, pid=1, url="", socket=str(short_directory / "qd.sock"))
        owner = Path(data_dir.path).stat().st_uid
        monkeypatch.setattr(os, "getuid", lambda: SOMEBODY_ELSE)
        for uid in (0, owner, SOMEBODY_ELSE):
            monkeypatch.setattr(discovery, "listener_uid", lambda connection, uid=uid: uid)
            assert discovery.connect_data_dir(ServerLocation(), {}, data_dir) is not None


def test_beside_a_socket_of_another_user_the_port_of_a_living_server_still_serves(
    data_dir: DataDir, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "listener_uid", lambda connection: SOMEBODY_ELSE)
    with (
        listening_at(short_directory / "qd.sock"),
        run_scripted_server(http_response(200, {})) as ours,
        held(data_dir.server_lock),
    ):
        write_record(data_dir, pid=os.getpid(), url=ours.url, socket=str(short_directory / "qd.sock"))
        found = discovery.connect_data_dir(ServerLocation(), {}, data_dir)
        assert found is not None
        assert str(found.address) == ours.url


@pytest.mark.parametrize(("mode", "trusted"), [(0o700, True), (0o755, True), (0o770, False), (0o1777, False)])
def test_where_the_kernel_does_not_tell_who_listens_the_sockets_directory_must_be_ours_alone(
    data_dir: DataDir, short_directory: Path, monkeypatch: pytest.MonkeyPatch, mode: int, trusted: bool
) -> None:
    monkeypatch.setattr(discovery, "listener_uid", lambda connection: None)
    short_directory.chmod(mode)
    with listening_at(short_directory / "qd.sock"):
        write_record(data_dir, pid=1, url="", socket=str(short_directory / "qd.sock"))
        if trusted:
            assert discovery.connect_data_dir(ServerLocation(), {}, data_dir) is not None
        else:
            with pytest.raises(Unreachable, match="another user"):
                discovery.connect_data_dir(ServerLocation(), {}, data_dir)


def test_a_tcp_port_of_an_old_record_is_not_trusted_while_nobody_holds_the_directory(data_dir: DataDir) -> None:
    with run_scripted_server(http_response(200, {})) as stranger:
        write_record(data_dir, pid=os.getpid(), url=stranger.url, socket="/nowhere")
        assert discovery.connect_data_dir(ServerLocation(), {}, data_dir) is None
        with held(data_dir.server_lock):
            assert discovery.connect_data_dir(ServerLocation(), {}, data_dir) is not None


def test_a_directory_of_postgresql_is_never_started_automatically(data_dir: DataDir) -> None:
    write_record(data_dir, pid=1, url="http://127.0.0.1:1", socket="/nowhere", database="postgresql")
    with pytest.raises(Unreachable, match="PostgreSQL") as told:
        discovery.connect_server(ServerLocation(data=data_dir.path), {}, refuse_to_speak)
    assert "qd up" in told.value.detail


def test_a_server_that_starts_elsewhere_is_waited_for_and_not_doubled(data_dir: DataDir) -> None:
    server = ApiClient(Address("unix", "/nowhere"), None, 1)
    answers = iter([None, None, server])
    with held(data_dir.server_lock):
        assert autostart.ensure_server(data_dir, refuse_to_speak, lambda: next(answers)) is server


def test_a_long_log_is_put_aside_at_the_next_start(qd: Qd) -> None:
    qd.data.mkdir()
    with (qd.data / "server.log").open("w") as log:
        log.truncate(17 * 1024 * 1024)
    qd.run("zone", "list", "--token", "t")
    assert (qd.data / "server.log").read_text().startswith("began")
    assert (qd.data / "server.log.1").stat().st_size == 17 * 1024 * 1024


def test_the_kernel_tells_which_process_listens_and_whose_it_is(short_directory: Path) -> None:
    path = str(short_directory / "a.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as connection:
        listener.bind(path)
        listener.listen()
        connection.connect(path)
        assert listener_pid(connection) in (os.getpid(), None)
        assert listener_uid(connection) == (os.getuid() if sys.platform == "linux" else None)


def test_a_server_is_started_where_none_runs_and_the_user_is_told(qd: Qd) -> None:
    done = qd("zone", "list", "--json", "--token", "t", QD_ZONE="z", DATABASE_URL="postgresql://elsewhere/db")
    assert (done.returncode, done.stdout) == (0, NO_ZONES)
    assert done.stderr.startswith("qd: no server runs")
    assert done.stderr.count("\n") == 1
    log = (qd.data / "server.log").read_text()
    assert f"began up --data {qd.data} --port 0 --auto-started --ready-fd" in log
    assert "sees QD_DATA QD_LOG_LEVEL=warning\n" in log, "what concerns the client alone is not handed on"
    assert (qd.data / "server.log").stat().st_mode & 0o077 == 0
    assert qd.data.stat().st_mode & 0o077 == 0


def test_an_automatic_start_logs_what_its_owner_said(qd: Qd) -> None:
    qd.run("zone", "list", "--token", "t", QD_LOG_LEVEL="debug")
    assert "sees QD_DATA QD_LOG_LEVEL=debug\n" in (qd.data / "server.log").read_text()


def test_an_automatic_start_leaves_the_level_to_the_settings_file_that_names_one(qd: Qd) -> None:
    qd.data.mkdir()
    (qd.data / "quarterdeck.toml").write_text('log_level = "error"\n')
    qd.run("zone", "list", "--token", "t")
    assert "sees QD_DATA\n" in (qd.data / "server.log").read_text()


def test_the_second_command_finds_the_server_of_the_first_and_says_nothing(qd: Qd) -> None:
    qd.run("zone", "list", "--token", "t")
    again = qd("zone", "list", "--json", "--token", "t")
    assert (again.stdout, again.stderr) == (NO_ZONES, "")


def test_many_commands_at_once_start_one_server(qd: Qd) -> None:
    running = [qd.start("zone", "list", "--json", "--token", "t") for _ in range(6)]
    told = [process.communicate(timeout=60) for process in running]
    assert [out for out, _ in told] == [NO_ZONES] * 6
    assert sum("starting one" in err for _, err in told) == 1
    assert (qd.data / "server.log").read_text().count("began") == 1


def test_a_start_that_fails_shows_the_end_of_the_log(qd: Qd) -> None:
    done = qd("zone", "list", "--token", "t", STAND_IN="gives up")
    assert done.returncode == 1
    assert "The server did not start" in done.stderr
    assert "the database is on fire" in done.stderr


def test_a_server_that_was_killed_is_replaced_although_its_record_and_socket_are_there(qd: Qd) -> None:
    qd.run("zone", "list", "--token", "t")
    first = DataDir(str(qd.data)).read_record()
    qd.end_server(signal.SIGKILL)
    assert first is not None
    assert Path(first.socket).exists()
    qd.run("zone", "list", "--token", "t")
    second = DataDir(str(qd.data)).read_record()
    assert second is not None
    assert second.pid != first.pid


def test_stop_ends_the_process_that_listens_whatever_pid_the_record_bears(qd: Qd) -> None:
    qd.run("zone", "list", "--token", "t")
    path = qd.data / "server.json"
    true = json.loads(path.read_text())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        path.write_text(json.dumps({**true, "pid": stranger.pid}))
        told = qd.run_json("stop")
        assert (told["stopped"], told["pid"]) == (True, true["pid"])
        assert stranger.poll() is None, "a stranger with a reused pid must live"
        stranger.kill()
