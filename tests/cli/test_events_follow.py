"""`qd events --follow` prints every event once and in order, across lost connections and restarts."""

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
from typing import IO, Any

import pytest

from quarterdeck.client.data_dir import DataDir
from tests.cli.cli_support import RUN_TIMEOUT_SECONDS, Qd, http_response, run_qd
from tests.support.eventually import eventually_sync


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qd]:
    with run_qd(tmp_path_factory.mktemp("qd") / "data") as program:
        program.run("zone", "list")
        yield program


class EventFollower:
    """A running `qd events --follow`."""

    def __init__(self, qd: Qd, *words: str, **environment: str) -> None:
        self.process = qd.start("events", "--follow", *words, **environment)

    def read_line(self) -> str:
        return stream(self.process.stdout).readline().rstrip("\n")

    def read_lines(self, count: int) -> list[str]:
        return [self.read_line() for _ in range(count)]

    def interrupt(self) -> tuple[int, str, str]:
        """Sends Ctrl-C. Returns the exit code and the remaining output."""
        self.process.send_signal(signal.SIGINT)
        stdout, stderr = self.process.communicate(timeout=RUN_TIMEOUT_SECONDS)
        return self.process.returncode, stdout, stderr

    def __enter__(self) -> EventFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=RUN_TIMEOUT_SECONDS)


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def create_zone(qd: Qd, name: str) -> tuple[str, ...]:
    qd.run("zone", "create", name)
    return ("--zone", name)


def list_events(qd: Qd, *words: str) -> list[dict[str, Any]]:
    return list(qd.run_json("events", "list", "--limit", "1000", *words)["items"])


# -- output


def test_follow_prints_stored_events_after_a_position_then_new_ones(qd: Qd) -> None:
    zone = create_zone(qd, "follow-after")
    first = qd.run("session", "spawn", "--app", "demo", *zone)
    with EventFollower(qd, "--after", "0", *zone) as follower:
        created, spawned = follower.read_lines(2)
        assert created.split()[2:4] == ["zone.create", "follow-after"]
        assert re.fullmatch(rf"\d+ +\S+Z  session\.spawn +{first}  local  - → active", spawned)
        second = qd.run("session", "spawn", "--app", "demo", *zone)
        assert second in follower.read_line()
        qd.run("session", "stop", first, *zone)
        assert follower.read_line().endswith("active → terminated")


def test_follow_without_a_position_starts_at_the_current_end(qd: Qd) -> None:
    zone = create_zone(qd, "follow-now")
    qd.run("session", "spawn", "--app", "demo", *zone)
    numbers = itertools.count(1)
    with EventFollower(qd, "--json", *zone) as follower:

        def is_change_printed() -> bool:
            # The follower does not report when it has connected, so changes are made until one is printed.
            qd.run("zone", "quotas", "--set", f"max_depth={next(numbers) % 50 + 1}", *zone)
            return bool(select.select([stream(follower.process.stdout)], [], [], 0)[0])

        eventually_sync(is_change_printed, "the follower printed a change", limit=60)
        assert json.loads(follower.read_line())["type"] == "zone.change"


def test_json_output_has_one_event_per_line_equal_to_the_list(qd: Qd) -> None:
    zone = create_zone(qd, "follow-json")
    for _ in range(3):
        qd.run("session", "spawn", "--app", "demo", *zone)
    with EventFollower(qd, "--json", "--after", "0", *zone) as follower:
        assert [json.loads(line) for line in follower.read_lines(4)] == list_events(qd, *zone)


def test_follow_filters_by_types_and_subject(qd: Qd) -> None:
    zone = create_zone(qd, "follow-narrow")
    first, second = (qd.run("session", "spawn", "--app", "demo", *zone) for _ in range(2))
    qd.run("session", "stop", first, *zone)
    types = ("--type", "session.terminate", "--type", "zone.create")
    with EventFollower(qd, "--json", "--after", "0", *types, *zone) as follower:
        assert [json.loads(line)["type"] for line in follower.read_lines(2)] == ["zone.create", "session.terminate"]
    with EventFollower(qd, "--json", "--after", "0", "--subject", second, *zone) as follower:
        assert json.loads(follower.read_line())["subject"] == second
        qd.run("session", "stop", second, *zone)
        assert json.loads(follower.read_line())["type"] == "session.terminate"


def test_follow_with_a_limit_exits_after_that_many_events(qd: Qd) -> None:
    zone = create_zone(qd, "follow-limit")
    for _ in range(3):
        qd.run("session", "spawn", "--app", "demo", *zone)
    assert len(qd.run("events", "-f", "--after", "0", "--limit", "3", *zone).splitlines()) == 3
    [line] = qd.run("events", "list", "--follow", "--after", "0", "--limit", "1", *zone).splitlines()
    assert "zone.create" in line


def test_refusal_of_the_first_request_is_reported(qd: Qd) -> None:
    result = qd("events", "--follow", "--zone", "no-such-zone")
    assert (result.returncode, result.stdout) == (4, "")
    assert "no-such-zone" in result.stderr
    result = qd("events", "--follow", "--json", "--zone", "no-such-zone")
    assert json.loads(result.stderr)["error"] == "zone_not_found"


# -- exit


def test_sigint_ends_follow_without_output(qd: Qd) -> None:
    with EventFollower(qd, "--after", "0") as follower:
        follower.read_line()
        code, _, stderr = follower.interrupt()
        assert (code, stderr) == (-signal.SIGINT, "")


def test_closed_output_pipe_ends_an_idle_follow(qd: Qd) -> None:
    with EventFollower(qd, "--after", "0", *create_zone(qd, "follow-head")) as follower:
        follower.read_line()
        stream(follower.process.stdout).close()
        assert follower.process.wait(RUN_TIMEOUT_SECONDS) == -signal.SIGPIPE
        assert stream(follower.process.stderr).read() == ""


# -- reconnection


def test_follow_continues_after_a_restart_and_starts_no_server(fresh_qd: Qd) -> None:
    fresh_qd.run("zone", "list")
    with EventFollower(fresh_qd, "--json", "--after", "0") as follower:
        assert json.loads(follower.read_line())["type"] == "zone.create"
        before = fresh_qd.run("session", "spawn", "--app", "demo")
        assert json.loads(follower.read_line())["subject"] == before
        fresh_qd.run("stop")
        assert "Reconnecting" in stream(follower.process.stderr).readline()
        assert not DataDir(str(fresh_qd.data)).has_running_server()
        after = [fresh_qd.run("session", "spawn", "--app", "demo") for _ in range(2)]
        assert [json.loads(line)["subject"] for line in follower.read_lines(2)] == after
        assert "reconnected after event" in stream(follower.process.stderr).readline()
        fresh_qd.end_server(signal.SIGKILL)
        last = fresh_qd.run("session", "spawn", "--app", "demo")
        assert json.loads(follower.read_line())["subject"] == last


class StreamServer:
    """A server that answers each connection with scripted bytes and then closes it."""

    def __init__(self, *responses: bytes) -> None:
        self.requests: list[bytes] = []
        self._responses = responses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for response in self._responses:
            connection, _ = self._listener.accept()
            with connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(65_536)
                self.requests.append(request)
                connection.sendall(response)
        self._listener.close()

    def last_event_ids(self) -> list[str | None]:
        """Returns the Last-Event-ID header of each request."""
        matches = [re.search(rb"last-event-id: (\S*)", request, re.IGNORECASE) for request in self.requests]
        return [match[1].decode() if match else None for match in matches]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text.encode()), text.encode())


def event(position: int, event_type: str = "session.spawn") -> str:
    data = json.dumps({"pos": position, "type": event_type, "subject": f"s{position}"})
    return f"id: {position}\nevent: {event_type}\ndata: {data}\n\n"


def follow_scripted(server: StreamServer, qd: Qd, *words: str) -> subprocess.CompletedProcess[str]:
    return qd("events", "--follow", "--url", server.url, "--token", "t", *words)


def test_follow_reconnects_from_the_last_event_id(qd: Qd) -> None:
    stream_start = HEAD + chunk("retry: 1\nid: 4\n\n")
    server = StreamServer(
        stream_start,
        stream_start + chunk(event(5) + ": keep-alive\nid: 6\n\n"),
        stream_start + chunk(event(7)) + chunk(event(8))[:-20],
        HEAD[:40],
        b"",
        http_response(503, {"error": "draining", "detail": "Not now."}),
        stream_start + chunk(event(8)) + b"0\r\n\r\n",
        stream_start + chunk(event(9)),
    )
    result = follow_scripted(server, qd, "--json", "--limit", "4")
    assert [json.loads(line)["pos"] for line in result.stdout.splitlines()] == [5, 7, 8, 9]
    assert server.last_event_ids() == [None, "4", "6", "7", "7", "7", "7", "8"]
    assert result.returncode == 0


def test_disconnect_and_reconnect_are_each_reported_once(qd: Qd) -> None:
    stream_start = HEAD + chunk("retry: 1\nid: 4\n\n")
    unavailable = http_response(503, {"error": "draining", "detail": "Not now."})
    server = StreamServer(stream_start + chunk(event(5)), unavailable, unavailable, stream_start + chunk(event(6)))
    result = follow_scripted(server, qd, "--limit", "2")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["5", "6"]
    disconnected, reconnected = result.stderr.splitlines()
    assert disconnected.startswith("qd: ") and disconnected.endswith("Reconnecting.")
    assert reconnected == "qd: reconnected after event 5"


def test_reset_is_reported_in_text_and_json(qd: Qd) -> None:
    reset = 'id: 40\nevent: reset\ndata: {"floor":40,"head":90}\n\n'
    stream_with_reset = HEAD + chunk("retry: 1\n\n" + reset + event(41))
    result = follow_scripted(StreamServer(stream_with_reset), qd, "--after", "3", "--limit", "1")
    assert result.stdout.split()[0] == "41"
    assert "Continuing from 40" in result.stderr
    result = follow_scripted(StreamServer(stream_with_reset), qd, "--after", "3", "--limit", "1", "--json")
    first, second = map(json.loads, result.stdout.splitlines())
    assert first == {"type": "reset", "floor": 40, "head": 90}
    assert second["pos"] == 41


def test_refusal_of_a_reconnect_ends_follow(qd: Qd) -> None:
    refusal = http_response(401, {"error": "session_ended", "detail": "The session has ended.", "status": 401})
    result = follow_scripted(StreamServer(HEAD + chunk("retry: 1\n\n" + event(1)), refusal), qd)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "qd: The session has ended."


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"not http\r\n\r\n",
        http_response(200, {"items": []}),
        http_response(500, {"error": "internal_error", "detail": "Internal error."}),
    ],
    ids=["empty", "not-http", "json-list", "server-error"],
)
def test_first_response_that_is_no_stream_fails_without_retry(qd: Qd, response: bytes) -> None:
    server = StreamServer(response)
    result = follow_scripted(server, qd)
    assert result.returncode == 1
    assert result.stderr.startswith("qd: ")
    assert len(server.requests) == 1
