"""Limits on connections: incomplete requests, endless heads and the maximum number of connections."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from quarterdeck.http.connection import HEAD_BYTES_MAX
from tests.support.server import Launch, ServerProcess, Servers


@pytest.fixture
async def server(servers: Servers, sqlite_url: str, tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    environment = {"QD_REQUEST_TIMEOUT_MS": "200", "QD_CONNECTIONS_MAX": "20"}
    return await servers.start(Launch(tmp_path_factory.mktemp("data"), sqlite_url, environment=environment))


async def connect(server: ServerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /health HT",
        b"GET /health HTTP/1.1\r\nhost: here\r\nx-slow: ",
        b"POST /zones/default/agents HTTP/1.1\r\nhost: here\r\ncontent-length: 10\r\n\r\n{",
    ],
    ids=["nothing", "half a line", "half a head", "half a body"],
)
async def test_connection_with_an_unfinished_request_is_closed(server: ServerProcess, data: bytes) -> None:
    reader, writer = await connect(server)
    writer.write(data)
    received = await read_to_end(reader)
    assert not received or received.startswith(b"HTTP/1.1 401")
    writer.close()


async def test_empty_line_does_not_keep_an_idle_connection_open(server: ServerProcess) -> None:
    reader, writer = await connect(server)
    writer.write(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.write(b"\r\n")
    assert (await read_to_end(reader)).endswith(b'{"ok":true}')
    writer.close()


async def test_endless_request_head_is_refused(server: ServerProcess) -> None:
    reader, writer = await connect(server)
    writer.write(b"GET /health HTTP/1.1\r\nhost: here\r\nx-long: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(64):
            writer.write(b"x" * (HEAD_BYTES_MAX // 4))
            await writer.drain()
    received = await read_to_end(reader)
    assert not received or b" 400 " in received.splitlines()[0]
    writer.close()


async def test_connection_over_the_limit_is_closed_without_affecting_others(server: ServerProcess) -> None:
    connections = [await connect(server) for _ in range(20)]
    for _, writer in connections:
        writer.write(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
    for reader, _ in connections:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    reader, writer = await connect(server)
    assert await read_to_end(reader) == b""
    for _, each in [*connections, (reader, writer)]:
        each.close()
