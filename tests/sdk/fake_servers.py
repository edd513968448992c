"""Faulty servers for SDK tests: a scripted server, and a proxy that cuts connections to a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from quarterdeck.sdk import Options, Quarterdeck
from tests.support.zone import FreshZone

T = TypeVar("T")
HANG_STEP = b"hang"
CUT_STEP = b"cut"
ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]
LONG_TIMEOUTS = Options(timeout=20.0, patience=20.0)


def sdk_client(zone: FreshZone, url: str | None = None, options: Options = LONG_TIMEOUTS) -> Quarterdeck:
    """Returns a client with the token of the zone's application, for the zone's server or another URL."""
    return Quarterdeck.connect(url or zone.server.url, zone.token(), zone.id, options=options)


def http_response(status: int, document: object = None, **headers: str) -> bytes:
    body = b"" if document is None else json.dumps(document).encode()
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class ScriptedServer:
    """Answers requests in order over any number of connections.

    Each step sends bytes, never answers (HANG_STEP) or closes the connection (CUT_STEP)."""

    script: list[bytes]
    url: str = ""
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    request_received: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError), abort_on_exit(writer):
            while request := await read_request(reader):
                self.requests.append(request)
                self.request_received.set()
                step = self.script.pop(0)
                if step == HANG_STEP:
                    await reader.read()  # until the client disconnects
                elif step != CUT_STEP:
                    writer.write(step)
                    await writer.drain()
                if step in (HANG_STEP, CUT_STEP):
                    break


@contextlib.asynccontextmanager
async def run_server(
    handler: ConnectionHandler, path: Path | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Yields the URL of a server that passes each connection to the handler, and stops it at the end."""
    tasks: set[asyncio.Task[None]] = set()

    def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.get_running_loop().create_task(handler(reader, writer)))

    if path is not None:
        server = await asyncio.start_unix_server(on_connect, path)
        url = f"unix:{path}"
    else:
        server = await asyncio.start_server(on_connect, "127.0.0.1", 0, ssl=tls)
        url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield url
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def run_scripted_server(*script: bytes) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(list(script))
    async with run_server(server.handle) as server.url:
        yield server


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Reads one complete request. Returns empty bytes at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        return head + await reader.readexactly(sum(lengths))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


@dataclass
class CuttingProxy:
    """A proxy before a real server that can drop responses.

    Tests check `cut_count`: a test in which nothing was cut proves nothing."""

    url: str = ""
    cut_count: int = 0
    requests: list[bytes] = field(default_factory=list)
    is_unavailable: bool = False
    """Whether every connection is refused."""
    _should_cut: Callable[[bytes], bool] = field(default=lambda request: False)
    _upstream: tuple[str, int] = ("", 0)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut_next(self, *words: bytes) -> None:
        """For each word, drops the response to the next request whose first line contains it."""
        remaining = list(words)

        def match_once(request: bytes) -> bool:
            line = request.split(b"\r\n", 1)[0]
            found = next((word for word in remaining if word in line), None)
            if found is not None:
                remaining.remove(found)
            return found is not None

        self._should_cut = match_once

    def become_unavailable(self) -> None:
        self.is_unavailable = True
        self.cut_all()

    def cut_all(self) -> None:
        """Aborts all open connections."""
        for writer in list(self._open):
            writer.transport.abort()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_unavailable:
            writer.transport.abort()
            return
        self._open.add(writer)
        upstream, server = await asyncio.open_connection(*self._upstream)
        response_pump = asyncio.create_task(_pump(upstream, writer))
        try:
            with abort_on_exit(writer), abort_on_exit(server):
                while request := await read_request(reader):
                    self.requests.append(request)
                    cut = self._should_cut(request)
                    if cut:
                        response_pump.cancel()
                        await asyncio.wait([response_pump])
                    server.write(request)
                    await server.drain()
                    if cut:
                        await upstream.readuntil(b"\r\n\r\n")  # the server has done it, but the client gets no response
                        self.cut_count += 1
                        break
        finally:
            self._open.discard(writer)
            response_pump.cancel()
            await asyncio.wait([response_pump])


@contextlib.asynccontextmanager
async def run_cutting_proxy(url: str) -> AsyncIterator[CuttingProxy]:
    parts = urlsplit(url)
    proxy = CuttingProxy(_upstream=(str(parts.hostname), int(parts.port or 0)))
    async with run_server(proxy.handle) as proxy.url:
        yield proxy


@contextlib.contextmanager
def abort_on_exit(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Aborts the connection on every exit."""
    try:
        yield
    finally:
        writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


async def collect(items: AsyncIterator[T]) -> Sequence[T]:
    return [item async for item in items]
