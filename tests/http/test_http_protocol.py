"""HTTP/1.1 on the socket: split, pipelined, outdated and malformed requests."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.raw_http import RawConnection, build_request
from tests.support.server import ServerProcess

HEALTH = b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n"
ZONE = "/zones/http-protocol"


@pytest.fixture
def server(sqlite_server: ServerProcess) -> ServerProcess:
    """SQLite only: these tests do not depend on the database."""
    return sqlite_server


async def send_and_read_all(server: ServerProcess, data: bytes) -> bytes:
    """Sends the data and reads until the server closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    async with asyncio.timeout(30):
        received = await reader.read()
    writer.close()
    return received


async def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    connection = await RawConnection.open(server.url)
    requests = [build_request("PUT", f"{ZONE}-{n}", server.admin_token, {"name": f"n{n}"}) for n in range(20)]
    await connection.send(b"".join(requests))
    names = [(await connection.read_response()).json()["name"] for _ in requests]
    assert names == [f"n{n}" for n in range(20)]


async def test_request_sent_byte_by_byte_is_one_request(server: ServerProcess) -> None:
    connection = await RawConnection.open(server.url)
    for byte in build_request("PUT", ZONE, server.admin_token, {"name": "slow"}):
        await connection.send(bytes([byte]))
    assert (await connection.read_response()).json()["name"] == "slow"


async def test_chunked_body_is_accepted(server: ServerProcess) -> None:
    connection = await RawConnection.open(server.url)
    head = f"PUT {ZONE} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {server.admin_token}\r\n"
    await connection.send(head.encode() + b'transfer-encoding: chunked\r\n\r\n8\r\n{"name":\r\n')
    response = await connection.send_and_read(b'8\r\n"chunks"\r\n1\r\n}\r\n0\r\n\r\n')
    assert response.json()["name"] == "chunks"


async def test_expect_100_continue_is_answered_after_authentication(server: ServerProcess) -> None:
    body = b'{"name": "continued"}'
    head = f"PUT {ZONE} HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\ncontent-length: {len(body)}\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + f"authorization: Bearer {server.admin_token}\r\n\r\n".encode())
    async with asyncio.timeout(30):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        response = await RawConnection(reader, writer).send_and_read(body)
    assert response.json()["name"] == "continued"
    received = await send_and_read_all(server, head.encode() + b"\r\n")
    assert received.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in received


async def test_head_response_has_no_body_and_the_connection_stays_open(server: ServerProcess) -> None:
    received = await send_and_read_all(
        server,
        b"HEAD /health HTTP/1.1\r\nhost: here\r\n\r\nGET /health HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n",
    )
    first, second, body = received.split(b"\r\n\r\n")
    assert b"content-length: 11" in first
    assert second.startswith(b"HTTP/1.1 200")
    assert body == b'{"ok":true}'


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\x81\x00",
    ],
    ids=["HTTP/1.0", "connection: close", "upgrade"],
)
async def test_last_response_has_connection_close_and_the_connection_closes(server: ServerProcess, data: bytes) -> None:
    received = await send_and_read_all(server, data)
    assert received.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in received
    assert received.endswith(b'{"ok":true}')


async def test_request_before_invalid_bytes_is_answered(server: ServerProcess) -> None:
    received = await send_and_read_all(server, HEALTH + b"\x00\x01 garbage\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 200")
    assert b'{"ok":true}HTTP/1.1 400' in received
    assert b"invalid_http" in received


async def test_connection_stays_usable_after_413(server: ServerProcess) -> None:
    connection = await RawConnection.open(server.url)
    body = b"x" * 3_000_000
    head = f"PUT {ZONE} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {server.admin_token}\r\n"
    response = await connection.send_and_read(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    assert response.status == 413
    assert (await connection.send_and_read(HEALTH)).status == 200


@pytest.mark.parametrize("target", [b"/he%61lth", b"http://here/health", b"/health?x=%00#part"])
async def test_equivalent_request_targets_reach_the_same_route(server: ServerProcess, target: bytes) -> None:
    received = await send_and_read_all(
        server, b"GET " + target + b" HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n"
    )
    assert received.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("target", [b"/h\xc3\xa4lth", b"http://[::1/x", b"nowhere"])
async def test_invalid_request_target_is_400(server: ServerProcess, target: bytes) -> None:
    received = await send_and_read_all(
        server, b"GET " + target + b" HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n"
    )
    assert received.startswith(b"HTTP/1.1 400")


async def test_content_length_with_chunked_encoding_is_refused_and_ends_the_connection(server: ServerProcess) -> None:
    # Request smuggling: a proxy in front may have used the other length.
    both = b"POST /health HTTP/1.1\r\nhost: here\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    received = await send_and_read_all(server, both + HEALTH)
    assert received.startswith(b"HTTP/1.1 400")
    assert b"HTTP/1.1 2" not in received
