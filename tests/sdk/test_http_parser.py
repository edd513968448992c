"""The response parser: every body framing, every limit, and any split of the bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from quarterdeck.client import http_parser
from quarterdeck.client.http_parser import ResponseParser
from quarterdeck.client.http_types import Lost

COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n"
AFTER_100 = b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED
COMPLETE = [COUNTED, CHUNKED, AFTER_100, *(raw.replace(b"\r\n", b"\n") for raw in (COUNTED, CHUNKED, AFTER_100))]


def parse(*pieces: bytes) -> ResponseParser:
    parser = ResponseParser()
    for piece in pieces:
        parser.feed(piece)
    return parser


@given(st.sampled_from(COMPLETE), st.lists(st.integers(0, 120)))
def test_split_of_the_bytes_does_not_change_the_response(raw: bytes, cuts: list[int]) -> None:
    offsets = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    parser = parse(*(raw[a:b] for a, b in pairwise(offsets)))
    assert parser.is_complete
    assert parser.keep_alive
    assert parser.response().body == b"hello"


@pytest.mark.parametrize("raw", COMPLETE)
def test_response_is_complete_with_its_last_byte(raw: bytes) -> None:
    parser = ResponseParser()
    for byte in raw[:-1]:
        parser.feed(bytes([byte]))
        assert not parser.is_complete
    parser.feed(raw[-1:])
    assert parser.is_complete


def test_no_content_response_is_complete_after_its_head() -> None:
    assert parse(b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n").is_complete


@pytest.mark.parametrize("blank_line", [b"\n\n", b"\n\r\n", b"\r\n\n", b"\r\n\r\n"])
def test_first_blank_line_ends_the_head(blank_line: bytes) -> None:
    body = b"a\n\nb\r\n\r\n"
    parser = parse(b"HTTP/1.1 200 OK\r\nContent-Length: %d" % len(body) + blank_line + body)
    assert (parser.is_complete, parser.response().body) == (True, body)


def test_body_without_a_length_ends_with_the_connection() -> None:
    parser = parse(b"HTTP/1.1 200 OK\r\n\r\nto the ", b"end")
    assert not parser.is_complete
    parser.feed_eof()
    assert parser.is_complete
    assert not parser.keep_alive
    assert parser.response().body == b"to the end"


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", COUNTED[:-1], CHUNKED[:-2]])
def test_truncated_response_raises_lost(raw: bytes) -> None:
    parser = parse(raw)
    with pytest.raises(Lost, match="before the response was complete"):
        parser.feed_eof()


@pytest.mark.parametrize(
    "raw",
    [
        COUNTED + b"more",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_connection_with_extra_bytes_or_close_is_not_reused(raw: bytes) -> None:
    parser = parse(raw)
    assert parser.is_complete
    assert not parser.keep_alive


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"H" * 70_000,
        b"HTTP/1.1 abc OK\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 70000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7fffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcdef\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2_000,
        CHUNKED.replace(b"A: b", b"no colon here"),
        CHUNKED.replace(b"A: b", b"A: b\r\n" * 20_000),
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: yyyyyyyyyyyyyyyyy\r\n" * 5_000 + b"\r\n",
    ],
)
def test_invalid_response_raises_lost_as_soon_as_detected(raw: bytes) -> None:
    with pytest.raises(Lost) as caught:
        parse(raw)
    assert caught.value.code == "garbled_answer"


@pytest.mark.parametrize("raw", [CHUNKED, CHUNKED.replace(b"200", b"404"), b"HTTP/1.1 200 OK\r\n\r\nhello"])
def test_body_without_a_declared_length_is_limited(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_parser, "BODY_BYTES_MAX", 4)
    with pytest.raises(Lost, match="the body is longer than 4 bytes"):
        parse(raw)


def test_stream_of_any_length_is_read_if_its_body_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_parser, "BODY_BYTES_MAX", 4)
    parser = parse(CHUNKED[: CHUNKED.index(b"2\r\nlo")])
    assert parser.is_stream
    assert parser.take_body() == b"hel"
    parser.feed(CHUNKED[CHUNKED.index(b"2\r\nlo") :])
    assert (parser.take_body(), parser.is_complete) == (b"lo", True)


def test_take_body_returns_each_byte_once() -> None:
    parser = parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
    assert parser.take_body() == b"hel"
    parser.feed(b"lo\r\n1\r\n!\r\n")
    assert parser.take_body() == b"lo!"
    assert parser.take_body() == b""
    assert not parser.is_complete
