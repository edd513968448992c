"""HTTP/1.1 as peers speak it: in pieces, several at once, in old versions, and wrongly."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.raw_http import RawConnection, build_request
from tests.support.server import ServerProcess

HEALTH = b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n"
ZONE = "/zones/spoken"


@pytest.fixture
def server(sqlite_server: ServerProcess) -> ServerProcess:
    """One is enough: nothing of this reaches a database."""
    return sqlite_server


async def said(server: ServerProcess, words: bytes) -> bytes:
    """Everything the server says until it closes."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(words)
    async with asyncio.timeout(30):
        told = await reader.read()
    writer.close()
    return told


async def test_requests_sent_without_waiting_are_answered_one_by_one_in_their_order(server: ServerProcess) -> None:
    connection = await RawConnection.open(server.url)
    asked = [build_request("PUT", f"{ZONE}-{n}", server.admin_token, {"name": f"n{n}"}) for n in range(20)]
    await connection.send(b"".join(asked))
    names = [(await connection.read_response()).json()["name"] for _ in asked]
    assert names == [f"n{n}" for n in range(20)]


async def test_a_request_that_comes_byte_by_byte_is_one_request(server: ServerProcess) -> None:
    connection = await RawConnection.open(server.url)
    for byte in build_request("PUT", ZONE, server.admin_token, {"name": "slow"}):
        await connection.send(bytes([byte]))
    assert (await connection.read_response()).json()["name"] == "slow"


async def test_a_body_in_chunks_is_a_body(server: ServerProcess) -> None:
    connection = await RawConnection.open(server.url)
    head = f"PUT {ZONE} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {server.admin_token}\r\n"
    await connection.send(head.encode() + b'transfer-encoding: chunked\r\n\r\n8\r\n{"name":\r\n')
    answer = await connection.send_and_read(b'8\r\n"chunks"\r\n1\r\n}\r\n0\r\n\r\n')
    assert answer.json()["name"] == "chunks"


async def test_whoever_asks_whether_to_send_a_body_is_told_and_a_stranger_is_refused_before(
    server: ServerProcess,
) -> None:
    body = b'{"name": "asked"}'
    head = f"PUT {ZONE} HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\ncontent-length: {len(body)}\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + f"authorization: Bearer {server.admin_token}\r\n\r\n".encode())
    async with asyncio.timeout(30):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        answer = await RawConnection(reader, writer).send_and_read(body)
    assert answer.json()["name"] == "asked"
    told = await said(server, head.encode() + b"\r\n")
    assert told.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in told


async def test_a_head_alone_is_answered_without_a_body_and_the_connection_goes_on(server: ServerProcess) -> None:
    told = await said(
        server,
        b"HEAD /health HTTP/1.1\r\nhost: here\r\n\r\nGET /health HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n",
    )
    first, second, body = told.split(b"\r\n\r\n")
    assert b"content-length: 11" in first
    assert second.startswith(b"HTTP/1.1 200")
    assert body == b'{"ok":true}'


@pytest.mark.parametrize(
    "words",
    [
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\x81\x00",
    ],
    ids=["the version before", "by name", "another protocol"],
)
async def test_what_is_to_be_the_last_answer_says_so_and_is(server: ServerProcess, words: bytes) -> None:
    told = await said(server, words)
    assert told.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in told
    assert told.endswith(b'{"ok":true}')


async def test_nonsense_behind_a_request_does_not_cost_the_request_its_answer(server: ServerProcess) -> None:
    told = await said(server, HEALTH + b"\x00\x01 nonsense\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 200")
    assert b'{"ok":true}HTTP/1.1 400' in told
    assert b"invalid_http" in told


async def test_after_a_body_that_was_refused_unread_the_connection_is_as_good_as_before(server: ServerProcess) -> None:
    connection = await RawConnection.open(server.url)
    body = b"x" * 3_000_000
    head = f"PUT {ZONE} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {server.admin_token}\r\n"
    answer = await connection.send_and_read(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    assert answer.status == 413
    assert (await connection.send_and_read(HEALTH)).status == 200


@pytest.mark.parametrize("target", [b"/he%61lth", b"http://here/health", b"/health?x=%00#part"])
async def test_a_path_is_found_however_it_is_spelt(server: ServerProcess, target: bytes) -> None:
    told = await said(server, b"GET " + target + b" HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("target", [b"/h\xc3\xa4lth", b"http://[::1/x", b"nowhere"])
async def test_what_is_no_path_is_no_request(server: ServerProcess, target: bytes) -> None:
    told = await said(server, b"GET " + target + b" HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 400")


async def test_a_body_whose_length_is_said_in_two_ways_is_refused_and_nothing_behind_it_is_a_request(
    server: ServerProcess,
) -> None:
    """A proxy in front may have believed the other one."""
    both = b"POST /health HTTP/1.1\r\nhost: here\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    told = await said(server, both + HEALTH)
    assert told.startswith(b"HTTP/1.1 400")
    assert b"HTTP/1.1 2" not in told
