"""The HTTP client: every body framing, every limit, and errors that show whether a retry is safe."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from quarterdeck.client import http_sync, http_types
from quarterdeck.client.api import ApiClient, build_path, with_query
from quarterdeck.client.http_sync import Connection
from quarterdeck.client.http_types import Address, Lost, Request, TimedOut, Unreachable, parse_address
from quarterdeck.client.problems import problem_from_response, problem_to_document
from quarterdeck.core.errors import (
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_TIMEOUT,
    Internal,
    Invalid,
    LimitReached,
    NotFound,
    OutcomeUnknown,
    Problem,
    Unauthenticated,
    Unavailable,
)
from tests.cli.cli_support import ScriptedServer, http_response, run_scripted_server

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def exchange(server: ScriptedServer, timeout: float = 10.0) -> http_types.Response:
    connection = Connection(parse_address(server.url), timeout)
    try:
        return connection.exchange(Request("GET", "/", {}))
    finally:
        connection.close()


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The URL of a listener that never answers. The kernel accepts the connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n",
            b"hello",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200 OK\nContent-Length: 2\n\nok", b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    ],
)
def test_every_body_framing_is_read(raw: bytes, body: bytes) -> None:
    with run_scripted_server(raw) as server:
        response = exchange(server)
    assert (response.status, response.body) == (200, body)


def test_no_content_response_has_no_body() -> None:
    with run_scripted_server(b"HTTP/1.1 204 No Content\r\nX-Content-Length-Unused: 1\r\n\r\n") as server:
        assert exchange(server).status == 204


def test_header_names_are_lowercased_and_repeated_headers_joined() -> None:
    with run_scripted_server(http_response(200, {}, {"X-One": "1", "x-one": "2"})) as server:
        assert exchange(server).headers["x-one"] == "1, 2"


def test_malformed_response_raises_lost_and_closes_the_connection() -> None:
    # tests/sdk/test_http_parser.py has every way in which a response can be malformed.
    malformed = b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"
    with run_scripted_server(malformed, http_response(200, {})) as server:
        connection = Connection(parse_address(server.url), 10)
        with pytest.raises(Lost, match="the Content-Length is not a number") as caught:
            connection.exchange(Request("GET", "/", {}))
        assert caught.value.code == "garbled_answer"
        assert connection.exchange(Request("GET", "/", {})).status == 200
        assert server.connections == 2
        connection.close()


def test_truncated_response_raises_lost() -> None:
    with (
        run_scripted_server(b"HTTP/1.1 200 OK\r\nX-Length: 50\r\n") as server,
        pytest.raises(Lost, match="before the response was complete"),
    ):
        exchange(server)


def test_refused_connection_raises_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable, match="refused"):
        Connection(Address("http", "127.0.0.1", port), 5).open()
    with pytest.raises(Unreachable):
        Connection(Address("unix", "/nowhere/at/all.sock"), 5).open()
    with pytest.raises(Unreachable):
        Connection(Address("unix", "/far/too/long" * 20), 5).open()


def test_unanswered_request_raises_timed_out(silent_url: str) -> None:
    with pytest.raises(TimedOut) as caught:
        Connection(parse_address(silent_url), 0.05).exchange(Request("GET", "/", {}))
    assert caught.value.exit_code == EXIT_TIMEOUT


def test_one_deadline_covers_the_whole_response(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each read returns one byte and takes a second: every read is fast enough, the exchange is not.
    seconds = itertools.count()
    monkeypatch.setattr(http_sync, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(http_sync, "_READ_SIZE", 1)
    with run_scripted_server(http_response(200, {})) as server, pytest.raises(TimedOut) as caught:
        exchange(server, timeout=10)
    assert caught.value.code == "answer_timeout"


def test_connection_is_reused_while_both_sides_keep_it_open() -> None:
    with run_scripted_server(
        http_response(200, {}),
        http_response(200, {}),
        http_response(200, {}, {"Connection": "close"}),
        http_response(200, {}),
    ) as server:
        connection = Connection(parse_address(server.url), 10)
        for _ in range(3):
            connection.exchange(Request("GET", "/", {}))
        assert server.connections == 1
        connection.close()


def open_stream(connection: Connection) -> tuple[http_types.Response, Iterator[bytes]]:
    return connection.open_stream(Request("GET", "/", {}), lambda _: None)


def test_stream_is_read_as_it_arrives_and_closes_its_connection() -> None:
    with run_scripted_server(STREAM_HEAD + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n", http_response(200, {})) as server:
        connection = Connection(parse_address(server.url), 10)
        response, chunks = open_stream(connection)
        assert (response.status, response.body) == (200, b"")
        assert b"".join(chunks) == b"onetwo"
        connection.exchange(Request("GET", "/", {}))
        assert server.connections == 2
        connection.close()


def test_interim_response_before_a_stream_is_skipped() -> None:
    with run_scripted_server(b"HTTP/1.1 103 Early Hints\r\n\r\n" + STREAM_HEAD + b"2\r\nok\r\n0\r\n\r\n") as server:
        response, chunks = open_stream(Connection(parse_address(server.url), 10))
        assert (response.status, b"".join(chunks)) == (200, b"ok")


@pytest.mark.parametrize(("headers", "connections"), [({}, 1), ({"Connection": "close"}, 2)])
def test_refused_stream_keeps_the_connection_unless_the_server_closes_it(
    headers: dict[str, str], connections: int
) -> None:
    with run_scripted_server(http_response(404, {}, headers), http_response(200, {})) as server:
        connection = Connection(parse_address(server.url), 10)
        response, chunks = open_stream(connection)
        assert (response.status, response.body, list(chunks)) == (404, b"{}", [])
        assert connection.exchange(Request("GET", "/", {})).status == 200
        assert server.connections == connections
        connection.close()


def test_truncated_stream_raises_lost_after_its_data() -> None:
    with run_scripted_server(STREAM_HEAD + b"3\r\none\r\n") as server:
        _, chunks = open_stream(Connection(parse_address(server.url), 10))
        assert next(chunks) == b"one"
        with pytest.raises(Lost, match="before the response was complete"):
            next(chunks)


def test_silent_stream_raises_timed_out() -> None:
    def wait_too_long(_: socket.socket) -> None:
        raise TimeoutError

    with run_scripted_server(STREAM_HEAD) as server:
        _, chunks = Connection(parse_address(server.url), 10).open_stream(Request("GET", "/", {}), wait_too_long)
        with pytest.raises(TimedOut, match="sent nothing for too long") as caught:
            next(chunks)
    assert caught.value.code == "stream_silent"


def test_connection_with_an_unread_response_is_not_reused() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n"
    with run_scripted_server(page, http_response(200, {"id": "x"})) as server:
        client = ApiClient(parse_address(server.url), "t", 5)
        with pytest.raises(Lost, match="not an event stream"):
            client.stream("/events", {}, {}, lambda _: None)
        assert client.get("/x") == {"id": "x"}
        assert server.connections == 2


def test_line_break_in_a_header_is_refused() -> None:
    with run_scripted_server(http_response(200, {})) as server, pytest.raises(Invalid, match="nonprintable character"):
        ApiClient(parse_address(server.url), "token\r\nX-Evil: 1", 5).get("/")


def test_call_sends_token_key_and_body() -> None:
    with run_scripted_server(http_response(201, {"id": "x"})) as server:
        reply = ApiClient(parse_address(server.url), "secret", 5).call(
            "POST", "/zones/z/agents", body={"a": 1}, key="k"
        )
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert (reply.status, reply.document) == (201, {"id": "x"})
    assert head.startswith(b"POST /zones/z/agents HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret" in head
    assert b"Idempotency-Key: k" in head
    assert json.loads(body) == {"a": 1}


def test_call_without_a_token_is_refused_before_sending() -> None:
    with pytest.raises(Unauthenticated, match="QD_TOKEN"):
        ApiClient(Address("http", "127.0.0.1", 9), None, 5).get("/zones")


def test_pages_fetches_every_page() -> None:
    first, last = {"items": [{"id": 1}], "next_cursor": "c"}, {"items": [{"id": 2}], "next_cursor": None}
    with run_scripted_server(http_response(200, first), http_response(200, last)) as server:
        pages = list(ApiClient(parse_address(server.url), "t", 5).pages("/x", {"limit": 1}))
    assert [page["items"] for page in pages] == [[{"id": 1}], [{"id": 2}]]
    assert b"GET /x?limit=1&cursor=c " in server.requests[1]


def test_repeated_cursor_ends_the_pagination() -> None:
    page = http_response(200, {"items": [], "next_cursor": "c"})
    with run_scripted_server(page, page, page) as server:
        assert len(list(ApiClient(parse_address(server.url), "t", 5).pages("/x", {}))) == 2


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_response_that_is_no_json_object_raises_lost(body: bytes) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with run_scripted_server(raw) as server, pytest.raises(Lost, match="not a JSON object"):
        ApiClient(parse_address(server.url), "t", 5).get("/")


def test_path_segments_are_percent_encoded() -> None:
    assert build_path("zones", "a/../b", "x?y#z", "..") == "/zones/a%2F..%2Fb/x%3Fy%23z/%2E%2E"


def test_query_omits_missing_values() -> None:
    assert with_query("/x", {"a": None, "b": False, "c": True, "d": 5, "e": "ä &"}) == "/x?c=true&d=5&e=%C3%A4%20%26"
    assert with_query("/x", {"a": None}) == "/x"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:4000", Address("http", "127.0.0.1", 4000)),
        ("http://host/", Address("http", "host", 80)),
        ("https://host/prefix/", Address("https", "host", 443, "/prefix")),
        ("http://[::1]:4000", Address("http", "::1", 4000)),
        ("unix:/run/qd.sock", Address("unix", "/run/qd.sock")),
    ],
)
def test_urls_are_parsed_to_addresses(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize("url", ["", "localhost:4000", "ftp://x", "http://", "http://h:99999", "http://h/?q=1"])
def test_invalid_server_url_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="not a valid server URL"):
        parse_address(url)


@pytest.mark.parametrize(
    ("status", "code", "problem_type", "exit_code"),
    [
        (400, "invalid_cursor", Invalid, 1),
        (404, "agent_not_found", NotFound, EXIT_NOT_FOUND),
        (429, "agent_limit_exceeded", LimitReached, EXIT_REFUSED),
        (503, "queue_full", Unavailable, EXIT_TIMEOUT),
        (503, "outcome_unknown", OutcomeUnknown, EXIT_TIMEOUT),
        (504, "gateway", TimedOut, EXIT_TIMEOUT),
        (500, "internal", Internal, 1),
        (502, "bad_gateway", Internal, 1),
    ],
)
def test_problem_response_becomes_the_matching_problem_type(
    status: int, code: str, problem_type: type[Problem], exit_code: int
) -> None:
    document = {"error": code, "detail": "Detail.", "title": "T", "bound": "b", "code": 1, "self": 2}
    problem = problem_from_response(http_types.Response(status, {"retry-after": "7"}, json.dumps(document).encode()))
    assert type(problem) is problem_type
    assert (problem.code, problem.detail, problem.exit_code, problem.retry_after) == (code, "Detail.", exit_code, 7)
    assert problem_to_document(problem) == {**document, "status": status, "type": "about:blank", "retry_after": 7}


@pytest.mark.parametrize(("status", "exit_code"), [(301, 1), (418, 1), (502, 1), (504, EXIT_TIMEOUT)])
def test_error_response_without_a_document_becomes_a_problem(status: int, exit_code: int) -> None:
    problem = problem_from_response(http_types.Response(status, {}, b"<html>"))
    assert problem.exit_code == exit_code
    assert str(status) in problem.detail
    assert problem_to_document(problem)["status"] == status
