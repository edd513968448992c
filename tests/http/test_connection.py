"""What a peer may do before it has said anything."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from quarterdeck.http.connection import HEAD_MAX
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
    "said",
    [
        b"",
        b"GET /health HT",
        b"GET /health HTTP/1.1\r\nhost: here\r\nx-slow: ",
        b"POST /zones/default/agents HTTP/1.1\r\nhost: here\r\ncontent-length: 10\r\n\r\n{",
    ],
    ids=["nothing", "half a line", "half a head", "half a body"],
)
async def test_a_peer_that_never_finishes_its_request_is_cut_off(server: ServerProcess, said: bytes) -> None:
    reader, writer = await connect(server)
    writer.write(said)
    told = await read_to_end(reader)
    assert not told or told.startswith(b"HTTP/1.1 401")
    writer.close()


async def test_an_empty_line_on_a_kept_connection_does_not_keep_it_for_ever(server: ServerProcess) -> None:
    reader, writer = await connect(server)
    writer.write(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.write(b"\r\n")
    assert (await read_to_end(reader)).endswith(b'{"ok":true}')
    writer.close()


async def test_a_head_without_end_is_refused_and_not_kept(server: ServerProcess) -> None:
    reader, writer = await connect(server)
    writer.write(b"GET /health HTTP/1.1\r\nhost: here\r\nx-long: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(64):
            writer.write(b"x" * (HEAD_MAX // 4))
            await writer.drain()
    told = await read_to_end(reader)
    assert not told or b" 400 " in told.splitlines()[0]
    writer.close()


async def test_beyond_the_most_connections_a_newcomer_is_turned_away_and_those_who_are_in_stay(
    server: ServerProcess,
) -> None:
    inside = [await connect(server) for _ in range(20)]
    for _, writer in inside:
        writer.write(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
    for reader, _ in inside:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    reader, writer = await connect(server)
    assert await read_to_end(reader) == b""
    for _, each in [*inside, (reader, writer)]:
        each.close()
