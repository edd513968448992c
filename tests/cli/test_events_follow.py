"""`qd events --follow`: every event once and in order, over cuts and restarts, until somebody has had enough."""

from __future__ import annotations

import itertools
import json
import re
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from quarterdeck.client.data_dir import DataDir
from tests.cli.cli_support import RUN_TIMEOUT_SECONDS, Qd, http_response
from tests.support.eventually import eventually_sync


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qd]:
    program = Qd(tmp_path_factory.mktemp("qd") / "data")
    program.run("zone", "list")
    yield program
    program.end_server()


@pytest.fixture
def fresh_qd(tmp_path: Path) -> Iterator[Qd]:
    """`qd` with a directory for this test alone, where nothing runs yet."""
    program = Qd(tmp_path / "data")
    yield program
    program.end_server()


class Following:
    """A `qd events --follow` that runs."""

    def __init__(self, qd: Qd, *words: str, **environment: str) -> None:
        self.process = qd.start("events", "--follow", *words, **environment)

    def line(self) -> str:
        return stream(self.process.stdout).readline().rstrip("\n")

    def lines(self, count: int) -> list[str]:
        return [self.line() for _ in range(count)]

    def interrupted(self) -> tuple[int, str, str]:
        """How it ends by Ctrl-C: its exit code, and what it had still to say."""
        self.process.send_signal(signal.SIGINT)
        stdout, stderr = self.process.communicate(timeout=RUN_TIMEOUT_SECONDS)
        return self.process.returncode, stdout, stderr

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=RUN_TIMEOUT_SECONDS)


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def zone_of(qd: Qd, name: str) -> tuple[str, ...]:
    qd.run("zone", "create", name)
    return ("--zone", name)


def listed(qd: Qd, *words: str) -> list[dict[str, Any]]:
    return list(qd.run_json("events", "list", "--limit", "1000", *words)["items"])


# -- what it prints


def test_it_prints_what_is_there_after_a_position_and_then_what_happens(qd: Qd) -> None:
    zone = zone_of(qd, "follow-after")
    first = qd.run("session", "spawn", "--app", "demo", *zone)
    with Following(qd, "--after", "0", *zone) as following:
        created, spawned = following.lines(2)
        assert created.split()[2:4] == ["zone.create", "follow-after"]
        assert re.fullmatch(rf"\d+ +\S+Z  session\.spawn +{first}  local  - → active", spawned)
        second = qd.run("session", "spawn", "--app", "demo", *zone)
        assert second in following.line()
        qd.run("session", "stop", first, *zone)
        assert following.line().endswith("active → terminated")


def test_without_a_position_it_begins_now(qd: Qd) -> None:
    zone = zone_of(qd, "follow-now")
    qd.run("session", "spawn", "--app", "demo", *zone)
    numbers = itertools.count(1)
    with Following(qd, "--json", *zone) as following:

        def heard() -> bool:
            # It does not say when it has begun, so something happens again and again until it tells of it.
            qd.run("zone", "quotas", "--set", f"max_depth={next(numbers) % 50 + 1}", *zone)
            return bool(select.select([stream(following.process.stdout)], [], [], 0)[0])

        eventually_sync(heard, "the follower heard of a change", limit=60)
        assert json.loads(following.line())["type"] == "zone.change"


def test_for_programs_it_prints_one_json_object_a_line_as_the_list_has_it(qd: Qd) -> None:
    zone = zone_of(qd, "follow-json")
    for _ in range(3):
        qd.run("session", "spawn", "--app", "demo", *zone)
    with Following(qd, "--json", "--after", "0", *zone) as following:
        assert [json.loads(line) for line in following.lines(4)] == listed(qd, *zone)


def test_types_and_subject_narrow_what_is_printed(qd: Qd) -> None:
    zone = zone_of(qd, "follow-narrow")
    first, second = (qd.run("session", "spawn", "--app", "demo", *zone) for _ in range(2))
    qd.run("session", "stop", first, *zone)
    types = ("--type", "session.terminate", "--type", "zone.create")
    with Following(qd, "--json", "--after", "0", *types, *zone) as following:
        assert [json.loads(line)["type"] for line in following.lines(2)] == ["zone.create", "session.terminate"]
    with Following(qd, "--json", "--after", "0", "--subject", second, *zone) as following:
        assert json.loads(following.line())["subject"] == second
        qd.run("session", "stop", second, *zone)
        assert json.loads(following.line())["type"] == "session.terminate"


def test_with_a_limit_it_ends_by_itself(qd: Qd) -> None:
    zone = zone_of(qd, "follow-limit")
    for _ in range(3):
        qd.run("session", "spawn", "--app", "demo", *zone)
    assert len(qd.run("events", "-f", "--after", "0", "--limit", "3", *zone).splitlines()) == 3
    [only] = qd.run("events", "list", "--follow", "--after", "0", "--limit", "1", *zone).splitlines()
    assert "zone.create" in only


def test_what_the_server_refuses_at_first_is_told_as_by_any_command(qd: Qd) -> None:
    done = qd("events", "--follow", "--zone", "no-such-zone")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no-such-zone" in done.stderr
    done = qd("events", "--follow", "--json", "--zone", "no-such-zone")
    assert json.loads(done.stderr)["error"] == "zone_not_found"


# -- how it ends


def test_an_interrupt_ends_it_quietly_and_visibly_to_the_shell(qd: Qd) -> None:
    with Following(qd, "--after", "0") as following:
        following.line()
        code, _, stderr = following.interrupted()
        assert (code, stderr) == (-signal.SIGINT, "")


def test_it_ends_quietly_when_nobody_reads_it_any_more_though_nothing_happens(qd: Qd) -> None:
    with Following(qd, "--after", "0", *zone_of(qd, "follow-head")) as following:
        following.line()
        stream(following.process.stdout).close()
        assert following.process.wait(RUN_TIMEOUT_SECONDS) == -signal.SIGPIPE
        assert stream(following.process.stderr).read() == ""


# -- cuts


def test_it_goes_on_after_a_restart_and_starts_no_server_itself(fresh_qd: Qd) -> None:
    fresh_qd.run("zone", "list")
    with Following(fresh_qd, "--json", "--after", "0") as following:
        assert json.loads(following.line())["type"] == "zone.create"
        before = fresh_qd.run("session", "spawn", "--app", "demo")
        assert json.loads(following.line())["subject"] == before
        fresh_qd.run("stop")
        assert "Reconnecting" in stream(following.process.stderr).readline()
        assert not DataDir(str(fresh_qd.data)).has_running_server()
        after = [fresh_qd.run("session", "spawn", "--app", "demo") for _ in range(2)]
        assert [json.loads(line)["subject"] for line in following.lines(2)] == after
        assert "reconnected after event" in stream(following.process.stderr).readline()
        fresh_qd.end_server(signal.SIGKILL)
        last = fresh_qd.run("session", "spawn", "--app", "demo")
        assert json.loads(following.line())["subject"] == last


class Script:
    """A server that answers each connection with bytes of a script, and then cuts it."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for told in self._answers:
            connection, _ = self._listener.accept()
            with connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(65_536)
                self.requests.append(request)
                connection.sendall(told)
        self._listener.close()

    def positions(self) -> list[str | None]:
        """What each request said of where it was."""
        found = [re.search(rb"last-event-id: (\S*)", request, re.IGNORECASE) for request in self.requests]
        return [one[1].decode() if one else None for one in found]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text.encode()), text.encode())


def event(position: int, kind: str = "session.spawn") -> str:
    data = json.dumps({"pos": position, "type": kind, "subject": f"s{position}"})
    return f"id: {position}\nevent: {kind}\ndata: {data}\n\n"


def scripted(script: Script, qd: Qd, *words: str) -> subprocess.CompletedProcess[str]:
    return qd("events", "--follow", "--url", script.url, "--token", "t", *words)


def test_wherever_it_is_cut_it_comes_again_from_the_last_id_it_saw(qd: Qd) -> None:
    begins = HEAD + chunk("retry: 1\nid: 4\n\n")
    script = Script(
        begins,
        begins + chunk(event(5) + ": keep-alive\nid: 6\n\n"),
        begins + chunk(event(7)) + chunk(event(8))[:-20],
        HEAD[:40],
        b"",
        http_response(503, {"error": "draining", "detail": "Not now."}),
        begins + chunk(event(8)) + b"0\r\n\r\n",
        begins + chunk(event(9)),
    )
    done = scripted(script, qd, "--json", "--limit", "4")
    assert [json.loads(line)["pos"] for line in done.stdout.splitlines()] == [5, 7, 8, 9]
    assert script.positions() == [None, "4", "6", "7", "7", "7", "7", "8"]
    assert done.returncode == 0


def test_it_says_that_it_was_cut_once_and_that_it_goes_on_once(qd: Qd) -> None:
    begins = HEAD + chunk("retry: 1\nid: 4\n\n")
    away = http_response(503, {"error": "draining", "detail": "Not now."})
    script = Script(begins + chunk(event(5)), away, away, begins + chunk(event(6)))
    done = scripted(script, qd, "--limit", "2")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["5", "6"]
    cut, on = done.stderr.splitlines()
    assert cut.startswith("qd: ") and cut.endswith("Reconnecting.")
    assert on == "qd: reconnected after event 5"


def test_a_reset_is_told_to_people_and_to_programs(qd: Qd) -> None:
    reset = 'id: 40\nevent: reset\ndata: {"floor":40,"head":90}\n\n'
    told = HEAD + chunk("retry: 1\n\n" + reset + event(41))
    done = scripted(Script(told), qd, "--after", "3", "--limit", "1")
    assert done.stdout.split()[0] == "41"
    assert "going on from 40" in done.stderr
    done = scripted(Script(told), qd, "--after", "3", "--limit", "1", "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == {"type": "reset", "floor": 40, "head": 90}
    assert second["pos"] == 41


def test_what_is_refused_when_it_comes_again_ends_it(qd: Qd) -> None:
    refusal = http_response(401, {"error": "session_ended", "detail": "The session has ended.", "status": 401})
    done = scripted(Script(HEAD + chunk("retry: 1\n\n" + event(1)), refusal), qd)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "qd: The session has ended."


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"nonsense\r\n\r\n",
        http_response(200, {"items": []}),
        http_response(500, {"error": "internal_error", "detail": "A defect."}),
    ],
    ids=["nothing", "nonsense", "a list", "a defect"],
)
def test_a_first_answer_that_is_no_stream_is_told_and_not_asked_again(qd: Qd, told: bytes) -> None:
    script = Script(told)
    done = scripted(script, qd)
    assert done.returncode == 1
    assert done.stderr.startswith("qd: ")
    assert len(script.requests) == 1
