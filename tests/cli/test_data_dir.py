"""The client's view of the data directory: which server owns it, which record is trusted, single start."""

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
from quarterdeck.client.discovery import ServerLocation, listener_pid, listener_uid
from quarterdeck.client.http_sync import Connection
from quarterdeck.client.http_types import Address, Unreachable, parse_address
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
    """A directory with a short path, because the length of a socket path is limited."""
    with tempfile.TemporaryDirectory(prefix="qd-") as folder:
        yield Path(folder)


@pytest.fixture
def qd(tmp_path: Path, short_directory: Path) -> Iterator[Qd]:
    """`qd` that starts the fake server."""
    program = Qd(tmp_path / "data", FAKE_SERVER_SOCKET=str(short_directory / "qd.sock"))
    program.environment["PYTHONPATH"] = str(install_fake_server(tmp_path))
    yield program
    program.end_server()


@contextmanager
def lock_held(path: str) -> Iterator[None]:
    """Holds the lock through a second open file: a flock belongs to the open file, not to the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def lock_held_by_process(path: str) -> Iterator[subprocess.Popen[str]]:
    """Holds the lock in another process until its stdin is closed."""
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


def write_record(data_dir: DataDir, **fields: object) -> None:
    Path(data_dir.path, "server.json").write_text(json.dumps(fields))


def redirect(server: ApiClient, url: str) -> None:
    """Sends the client's requests to another address, where the test can read them."""
    server.connection = Connection(parse_address(url), 10)


def fail_on_notice(text: str) -> None:
    raise AssertionError(f"no server may be started, but: {text}")


def test_data_directory_comes_from_flag_then_variable_then_user_default() -> None:
    environ = {"QD_DATA": "/from/variable", "XDG_DATA_HOME": "/xdg"}
    assert resolve_data_dir("/from/flag", environ).path == "/from/flag"
    assert resolve_data_dir(None, environ).path == "/from/variable"
    if sys.platform == "linux":
        assert resolve_data_dir(None, {"XDG_DATA_HOME": "/xdg"}).path == "/xdg/quarterdeck"
        assert resolve_data_dir(None, {"XDG_DATA_HOME": "not/absolute"}).path.endswith("/.local/share/quarterdeck")


def test_relative_data_directory_becomes_absolute() -> None:
    assert resolve_data_dir("here", {}).path == str(Path.cwd() / "here")


def test_socket_path_is_short_and_the_same_through_a_symlink(tmp_path: Path) -> None:
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
def test_server_and_client_derive_the_same_socket_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    path = socket_path(DataDir(str(tmp_path)), {"XDG_RUNTIME_DIR": runtime})
    assert str(socket_of_server(tmp_path)) == path
    assert path.startswith("/run/user/1/" if runtime == "/run/user/1" else "/")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": "x", "url": 5}'])
def test_invalid_record_is_ignored(data_dir: DataDir, text: str) -> None:
    Path(data_dir.path, "server.json").write_text(text)
    record = data_dir.read_record()
    assert record is None or (record.pid, record.url) == (0, "")


def test_running_server_is_detected_by_the_lock_only(data_dir: DataDir) -> None:
    write_record(data_dir, pid=os.getpid(), url="http://127.0.0.1:1", socket="/nowhere")
    assert not data_dir.has_running_server(), "the process of the recorded pid lives, but it is not the server"
    with lock_held(data_dir.server_lock_path):
        assert data_dir.has_running_server()
    assert not data_dir.has_running_server()


def test_lock_wait_ends_when_the_holder_exits(data_dir: DataDir) -> None:
    with lock_held_by_process(data_dir.server_lock_path) as process:
        assert not file_locks.wait_until_free(data_dir.server_lock_path, 0.05)
        process.kill()
        assert file_locks.wait_until_free(data_dir.server_lock_path, 10)


def test_lock_not_acquired_in_time_raises_timeout_error(data_dir: DataDir) -> None:
    with (
        lock_held(data_dir.start_lock_path),
        pytest.raises(TimeoutError),
        file_locks.lock_exclusive(data_dir.start_lock_path, 0.05),
    ):
        raise AssertionError("the lock was acquired while another holder has it")


def test_lock_wait_restores_the_previous_timer(data_dir: DataDir) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    left, interval = signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with file_locks.lock_exclusive(data_dir.start_lock_path, 5):
            pass
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)


def test_given_url_is_used_and_no_server_is_started(data_dir: DataDir) -> None:
    server = discovery.connect_server(ServerLocation(data=data_dir.path, url="http://127.0.0.1:9"), {}, fail_on_notice)
    assert str(server.address) == "http://127.0.0.1:9"
    server = discovery.connect_server(
        ServerLocation(data=data_dir.path), {"QD_URL": "http://127.0.0.1:9"}, fail_on_notice
    )
    assert str(server.address) == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("url", "is_data_named", "is_sent"),
    [
        ("http://127.0.0.1:4000", False, True),
        ("http://localhost:4000/", False, True),
        ("http://127.0.0.1:4001", False, False),
        ("https://quarterdeck.example", False, False),
        ("https://quarterdeck.example", True, True),
    ],
)
def test_admin_token_is_sent_only_to_its_server_or_with_explicit_data(
    data_dir: DataDir, url: str, is_data_named: bool, is_sent: bool
) -> None:
    write_record(data_dir, pid=1, url="http://127.0.0.1:4000", socket="/nowhere")
    Path(data_dir.path, "admin-token").write_text("secret\n")
    location = ServerLocation(url=url, data=data_dir.path if is_data_named else None)
    with run_scripted_server(http_response(200, {})) as receiver:
        server = discovery.client_for_url(location, {"QD_DATA": data_dir.path}, url)
        redirect(server, receiver.url)
        if is_sent:
            server.get("/zones")
            assert b"Authorization: Bearer secret\r\n" in receiver.requests[0]
        else:
            with pytest.raises(Unauthenticated):
                server.get("/zones")
            assert receiver.connections == 0


def test_given_token_is_sent_to_any_url(data_dir: DataDir) -> None:
    for location, environ in ((ServerLocation(token="t"), {}), (ServerLocation(), {"QD_TOKEN": "t"})):
        with run_scripted_server(http_response(200, {})) as receiver:
            server = discovery.client_for_url(location, environ, "https://quarterdeck.example")
            redirect(server, receiver.url)
            server.get("/zones")
            assert b"Authorization: Bearer t\r\n" in receiver.requests[0]


@contextmanager
def listening_at(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


OTHER_UID = 54_321


def test_socket_of_another_user_is_refused_without_sending_anything(
    data_dir: DataDir, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening_at(short_directory / "qd.sock") as listener:
        write_record(data_dir, pid=1, url="", socket=str(short_directory / "qd.sock"))
        Path(data_dir.path, "admin-token").write_text("secret\n")
        assert discovery.connect_data_dir(ServerLocation(), {}, data_dir) is not None, "our own socket is trusted"
        listener.accept()[0].close()
        monkeypatch.setattr(discovery, "listener_uid", lambda connection: OTHER_UID)
        with pytest.raises(Unreachable, match=rf"another user \(uid {OTHER_UID}\)") as caught:
            discovery.connect_server(ServerLocation(data=data_dir.path), {}, fail_on_notice)
        assert str(short_directory / "qd.sock") in caught.value.detail
        connection = listener.accept()[0]
        connection.settimeout(10)
        with connection:
            assert connection.recv(1) == b"", "the connection was closed without sending a byte"


def test_socket_of_root_or_the_directory_owner_is_trusted(
    data_dir: DataDir, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening_at(short_directory / "qd.sock"):
        write_record(data_dir, pid=1, url="", socket=str(short_directory / "qd.sock"))
        owner = Path(data_dir.path).stat().st_uid
        monkeypatch.setattr(os, "getuid", lambda: OTHER_UID)
        for uid in (0, owner, OTHER_UID):
            monkeypatch.setattr(discovery, "listener_uid", lambda connection, uid=uid: uid)
            assert discovery.connect_data_dir(ServerLocation(), {}, data_dir) is not None


def test_port_of_a_running_server_is_used_if_the_socket_is_untrusted(
    data_dir: DataDir, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "listener_uid", lambda connection: OTHER_UID)
    with (
        listening_at(short_directory / "qd.sock"),
        run_scripted_server(http_response(200, {})) as own_server,
        lock_held(data_dir.server_lock_path),
    ):
        write_record(data_dir, pid=os.getpid(), url=own_server.url, socket=str(short_directory / "qd.sock"))
        found = discovery.connect_data_dir(ServerLocation(), {}, data_dir)
        assert found is not None
        assert str(found.address) == own_server.url


@pytest.mark.parametrize(("mode", "trusted"), [(0o700, True), (0o755, True), (0o770, False), (0o1777, False)])
def test_without_peer_credentials_the_socket_directory_must_be_private(
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


def test_tcp_port_of_a_record_is_trusted_only_while_the_lock_is_held(data_dir: DataDir) -> None:
    with run_scripted_server(http_response(200, {})) as other_server:
        write_record(data_dir, pid=os.getpid(), url=other_server.url, socket="/nowhere")
        assert discovery.connect_data_dir(ServerLocation(), {}, data_dir) is None
        with lock_held(data_dir.server_lock_path):
            assert discovery.connect_data_dir(ServerLocation(), {}, data_dir) is not None


def test_postgresql_data_directory_is_never_auto_started(data_dir: DataDir) -> None:
    write_record(data_dir, pid=1, url="http://127.0.0.1:1", socket="/nowhere", database="postgresql")
    with pytest.raises(Unreachable, match="PostgreSQL") as caught:
        discovery.connect_server(ServerLocation(data=data_dir.path), {}, fail_on_notice)
    assert "qd up" in caught.value.detail


def test_server_started_by_another_process_is_awaited(data_dir: DataDir) -> None:
    server = ApiClient(Address("unix", "/nowhere"), None, 1)
    answers = iter([None, None, server])
    with lock_held(data_dir.server_lock_path):
        assert autostart.ensure_server(data_dir, fail_on_notice, lambda: next(answers)) is server


def test_large_log_is_rotated_at_start(qd: Qd) -> None:
    qd.data.mkdir()
    with (qd.data / "server.log").open("w") as log:
        log.truncate(17 * 1024 * 1024)
    qd.run("zone", "list", "--token", "t")
    assert (qd.data / "server.log").read_text().startswith("started")
    assert (qd.data / "server.log.1").stat().st_size == 17 * 1024 * 1024


def test_socket_peer_credentials_identify_the_listener(short_directory: Path) -> None:
    path = str(short_directory / "a.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as connection:
        listener.bind(path)
        listener.listen()
        connection.connect(path)
        assert listener_pid(connection) in (os.getpid(), None)
        assert listener_uid(connection) == (os.getuid() if sys.platform == "linux" else None)


def test_missing_server_is_started_with_a_notice(qd: Qd) -> None:
    result = qd("zone", "list", "--json", "--token", "t", QD_ZONE="z", DATABASE_URL="postgresql://db.invalid/db")
    assert (result.returncode, result.stdout) == (0, NO_ZONES)
    assert result.stderr.startswith("qd: no server is running")
    assert result.stderr.count("\n") == 1
    log = (qd.data / "server.log").read_text()
    assert f"started up --data {qd.data} --port 0 --auto-started --ready-fd" in log
    assert "environment QD_DATA QD_LOG_LEVEL=warning\n" in log, "variables of the client are not passed on"
    assert (qd.data / "server.log").stat().st_mode & 0o077 == 0
    assert qd.data.stat().st_mode & 0o077 == 0


def test_auto_start_uses_the_log_level_of_the_environment(qd: Qd) -> None:
    qd.run("zone", "list", "--token", "t", QD_LOG_LEVEL="debug")
    assert "environment QD_DATA QD_LOG_LEVEL=debug\n" in (qd.data / "server.log").read_text()


def test_auto_start_leaves_the_log_level_to_the_settings_file(qd: Qd) -> None:
    qd.data.mkdir()
    (qd.data / "quarterdeck.toml").write_text('log_level = "error"\n')
    qd.run("zone", "list", "--token", "t")
    assert "environment QD_DATA\n" in (qd.data / "server.log").read_text()


def test_second_command_uses_the_running_server_without_notice(qd: Qd) -> None:
    qd.run("zone", "list", "--token", "t")
    again = qd("zone", "list", "--json", "--token", "t")
    assert (again.stdout, again.stderr) == (NO_ZONES, "")


def test_concurrent_commands_start_one_server(qd: Qd) -> None:
    running = [qd.start("zone", "list", "--json", "--token", "t") for _ in range(6)]
    outputs = [process.communicate(timeout=60) for process in running]
    assert [out for out, _ in outputs] == [NO_ZONES] * 6
    assert sum("starting one" in err for _, err in outputs) == 1
    assert (qd.data / "server.log").read_text().count("started up") == 1


def test_failed_start_prints_the_end_of_the_log(qd: Qd) -> None:
    result = qd("zone", "list", "--token", "t", FAKE_SERVER_MODE="fail")
    assert result.returncode == 1
    assert "The server did not start" in result.stderr
    assert "the database is on fire" in result.stderr


def test_killed_server_is_replaced_despite_its_record_and_socket(qd: Qd) -> None:
    qd.run("zone", "list", "--token", "t")
    first = DataDir(str(qd.data)).read_record()
    qd.end_server(signal.SIGKILL)
    assert first is not None
    assert Path(first.socket).exists()
    qd.run("zone", "list", "--token", "t")
    second = DataDir(str(qd.data)).read_record()
    assert second is not None
    assert second.pid != first.pid


def test_stop_ends_the_listening_process_not_the_recorded_pid(qd: Qd) -> None:
    qd.run("zone", "list", "--token", "t")
    path = qd.data / "server.json"
    record = json.loads(path.read_text())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other_process:
        path.write_text(json.dumps({**record, "pid": other_process.pid}))
        reply = qd.run_json("stop")
        assert (reply["stopped"], reply["pid"]) == (True, record["pid"])
        assert other_process.poll() is None, "the process with the recorded pid must not be killed"
        other_process.kill()
