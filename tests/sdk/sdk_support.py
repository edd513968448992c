"""Peers of the SDK that misbehave: one that follows a script, and one that stands before a real server and cuts."""

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
HANG = b"hang"
CUT = b"cut"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]
PATIENT = Options(timeout=20.0, patience=20.0)


def client_of(zone: FreshZone, url: str | None = None, options: Options = PATIENT) -> Quarterdeck:
    """The SDK as the zone's application uses it, straight to its server or by way of another address."""
    return Quarterdeck.connect(url or zone.server.url, zone.token(), zone.id, options=options)


def answer(status: int, document: object = None, **headers: str) -> bytes:
    body = b"" if document is None else json.dumps(document).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class Scripted:
    """Answers one request after another, over whichever connections they come: with bytes, with silence (HANG), or by
    cutting the connection (CUT)."""

    script: list[bytes]
    url: str = ""
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError), aborted(writer):
            while request := await read_request(reader):
                self.requests.append(request)
                self.asked.set()
                said = self.script.pop(0)
                if said == HANG:
                    await reader.read()  # until the client has had enough
                elif said != CUT:
                    writer.write(said)
                    await writer.drain()
                if said in (HANG, CUT):
                    break


@contextlib.asynccontextmanager
async def listening(serve: Serve, path: Path | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL at which each connection is served by this, and nothing of it when it is over."""
    served: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.get_running_loop().create_task(serve(reader, writer)))

    if path is not None:
        server = await asyncio.start_unix_server(connected, path)
        url = f"unix:{path}"
    else:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield url
    finally:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


@contextlib.asynccontextmanager
async def scripted(*script: bytes) -> AsyncIterator[Scripted]:
    peer = Scripted(list(script))
    async with listening(peer.serve) as peer.url:
        yield peer


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One request, whole; empty when there is none any more."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        return head + await reader.readexactly(sum(lengths))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


@dataclass
class Cutter:
    """Before a real server: passes on what is asked, and keeps the answers of what it is told to. `cuts` says how often
    it has: a test that cut nothing showed nothing."""

    url: str = ""
    cuts: int = 0
    seen: list[bytes] = field(default_factory=list)
    is_away: bool = False
    """Then nobody is let through."""
    _cut: Callable[[bytes], bool] = field(default=lambda request: False)
    _upstream: tuple[str, int] = ("", 0)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut_next(self, *words: bytes) -> None:
        """The next request whose first line holds one of these words reaches the server, and its answer nobody."""
        wanted = list(words)

        def once(request: bytes) -> bool:
            line = request.split(b"\r\n", 1)[0]
            found = next((word for word in wanted if word in line), None)
            if found is not None:
                wanted.remove(found)
            return found is not None

        self._cut = once

    def go_away(self) -> None:
        self.is_away = True
        self.cut_all()

    def cut_all(self) -> None:
        """Every connection there is now."""
        for writer in list(self._open):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_away:
            writer.transport.abort()
            return
        self._open.add(writer)
        upstream, server = await asyncio.open_connection(*self._upstream)
        answers = asyncio.create_task(_pump(upstream, writer))
        try:
            with aborted(writer), aborted(server):
                while request := await read_request(reader):
                    self.seen.append(request)
                    cut = self._cut(request)
                    if cut:
                        answers.cancel()
                        await asyncio.wait([answers])
                    server.write(request)
                    await server.drain()
                    if cut:
                        await upstream.readuntil(b"\r\n\r\n")  # it was done, and the client will not hear of it
                        self.cuts += 1
                        break
        finally:
            self._open.discard(writer)
            answers.cancel()
            await asyncio.wait([answers])


@contextlib.asynccontextmanager
async def cutting(url: str) -> AsyncIterator[Cutter]:
    parts = urlsplit(url)
    cutter = Cutter(_upstream=(str(parts.hostname), int(parts.port or 0)))
    async with listening(cutter.serve) as cutter.url:
        yield cutter


@contextlib.contextmanager
def aborted(writer: asyncio.StreamWriter) -> Iterator[None]:
    """However it ends, the connection is gone."""
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


async def all_of(items: AsyncIterator[T]) -> Sequence[T]:
    return [item async for item in items]
