"""Answers out of bytes: every framing, every bound, and however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from quarterdeck.client.http_parser import ResponseParser
from quarterdeck.client.http_types import Lost

COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n"
AFTER_100 = b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED
WHOLE = [COUNTED, CHUNKED, AFTER_100]


def fed(*pieces: bytes) -> ResponseParser:
    framing = ResponseParser()
    for piece in pieces:
        framing.feed(piece)
    return framing


@given(st.sampled_from(WHOLE), st.lists(st.integers(0, 120)))
def test_however_the_bytes_are_cut_the_answer_is_the_same(sent: bytes, cuts: list[int]) -> None:
    places = sorted({min(cut, len(sent)) for cut in cuts} | {0, len(sent)})
    framing = fed(*(sent[a:b] for a, b in pairwise(places)))
    assert framing.is_complete
    assert framing.keep_alive
    assert framing.response().body == b"hello"


@pytest.mark.parametrize("sent", WHOLE)
def test_an_answer_is_whole_with_its_last_byte_and_not_before(sent: bytes) -> None:
    framing = ResponseParser()
    for byte in sent[:-1]:
        framing.feed(bytes([byte]))
        assert not framing.is_complete
    framing.feed(sent[-1:])
    assert framing.is_complete


def test_an_answer_without_content_is_whole_with_its_head() -> None:
    assert fed(b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n").is_complete


def test_a_body_without_a_length_ends_with_the_connection_and_takes_it_along() -> None:
    framing = fed(b"HTTP/1.1 200 OK\r\n\r\nto the ", b"end")
    assert not framing.is_complete
    framing.feed_eof()
    assert framing.is_complete
    assert not framing.keep_alive
    assert framing.response().body == b"to the end"


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", COUNTED[:-1], CHUNKED[:-2]])
def test_an_answer_that_ends_early_is_lost(sent: bytes) -> None:
    framing = fed(sent)
    with pytest.raises(Lost, match="before the response was complete"):
        framing.feed_eof()


@pytest.mark.parametrize(
    "sent",
    [
        COUNTED + b"more",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_connection_that_says_more_or_says_goodbye_serves_no_other_exchange(sent: bytes) -> None:
    framing = fed(sent)
    assert framing.is_complete
    assert not framing.keep_alive


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
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
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_told_as_soon_as_it_can_be_seen(sent: bytes) -> None:
    with pytest.raises(Lost) as told:
        fed(sent)
    assert told.value.code == "garbled_answer"


def test_a_body_is_given_as_it_comes_and_each_byte_once() -> None:
    framing = fed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
    assert framing.take_body() == b"hel"
    framing.feed(b"lo\r\n1\r\n!\r\n")
    assert framing.take_body() == b"lo!"
    assert framing.take_body() == b""
    assert not framing.is_complete
