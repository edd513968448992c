"""One exchange: asyncio's streams and not a library in a thread, because the time limit must hold for the whole of it,
and a thread cannot be called back from a server that sends one byte a second. httptools, which also reads what the
server is asked, parses the answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

import httptools

from quarterdeck.engine.outbound_http.ssrf_guard import Guard, Resolve, Resolver, places
from quarterdeck.engine.outbound_http.types import (
    Answer,
    Bounds,
    Garbled,
    Overlong,
    Request,
    Target,
    TimedOut,
    Unreachable,
)

_CHUNK = 64 * 1024
_FRAMES = 32 * 1024
"""Beyond head and body: what chunks and interim answers may take."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Outward:
    """Asks one URL at a time, any number of times at once."""

    def __init__(self, guard: Guard, bounds: Bounds | None = None, resolve: Resolve | None = None) -> None:
        self._guard = guard
        self._bounds = bounds or Bounds()
        self._resolve = resolve or Resolver()
        self._tls: ssl.SSLContext | None = None

    async def ask(self, request: Request, seconds: float) -> Answer:
        """The answer, whatever its status. Raises an OutwardError."""
        target = Target.of(request.url)
        message = request.message(target)
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                addresses = await places(target, self._guard, self._resolve, request.asker)
                reader, writer = await self._connect(target, addresses, deadline)
                return await self._exchange(reader, writer, message)
        except ssl.SSLCertVerificationError:
            raise Unreachable("its certificate does not hold") from None
        except (OSError, UnicodeError) as failure:
            # A time-out of the network is an OSError of the same name as ours.
            if limit.expired():
                raise TimedOut(f"no answer within {seconds:g} s") from None
            raise Unreachable(f"it cannot be reached ({type(failure).__name__})") from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise Garbled("the answer is not HTTP") from None

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> Answer:
        try:
            # Not drained: an endpoint may answer before it has read everything, and what it says then is the answer.
            writer.write(message)
            return await self._read(reader)
        finally:
            # Not a polite close: a TLS peer that never answers one would keep the socket for half a minute.
            writer.transport.abort()

    async def _connect(self, target: Target, addresses: Sequence[str], deadline: float) -> Streams:
        """To the first that can be connected to. One that swallows everything leaves the others their share of time."""
        *others, last = addresses
        for number, address in enumerate(others):
            left = deadline - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(left / (len(addresses) - number)):
                    return await self._open(target, address)
            except OSError:
                continue
        return await self._open(target, last)

    async def _open(self, target: Target, address: str) -> Streams:
        if not target.tls:
            return await asyncio.open_connection(address, target.port)
        if self._tls is None:
            # On first use, and kept: loading the machine's certificates takes tens of milliseconds.
            self._tls = ssl.create_default_context()
        return await asyncio.open_connection(address, target.port, ssl=self._tls, server_hostname=target.name)

    async def _read(self, reader: asyncio.StreamReader) -> Answer:
        collected = _Collected()
        parser = collected.parser = httptools.HttpResponseParser(collected)
        received = 0
        while not collected.complete and (data := await reader.read(_CHUNK)):
            received += len(data)
            try:
                parser.feed_data(data)
            except httptools.HttpParserError:
                # What follows a whole answer is nobody's; it was to be the last thing said here.
                if not collected.complete:
                    raise
            self._check(collected, received)
        if not collected.is_whole:
            raise Garbled("the answer ends before its end")
        return Answer(collected.status, bytes(collected.body), collected.headers)

    def _check(self, collected: _Collected, received: int) -> None:
        bounds = self._bounds
        if len(collected.body) > bounds.body:
            raise Overlong(f"the answer is larger than {bounds.body} bytes", collected.status)
        if collected.head > bounds.head or (received > bounds.head and not collected.status):
            raise Overlong(f"the head of the answer is larger than {bounds.head} bytes")
        if received > bounds.head + bounds.body + _FRAMES:
            raise Overlong("the answer is larger than what it says", collected.status or None)


class _Collected:
    """One answer, as the parser tells of it."""

    def __init__(self) -> None:
        self.parser: httptools.HttpResponseParser
        self.status = 0
        """Once the head is whole; an interim answer has none that counts."""
        self.headers: dict[str, str] = {}
        self.head = 0
        """Bytes of headers so far, also of interim answers."""
        self.body = bytearray()
        self.complete = False

    @property
    def is_whole(self) -> bool:
        """Also if the connection has ended: without a length, that is how an answer ends."""
        lasts = "content-length" not in self.headers and "transfer-encoding" not in self.headers
        return self.complete or bool(self.status and lasts)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.head += len(name) + len(value)
        if self.status:
            # A trailer, or the head of something that nobody asked for.
            return
        key, said = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {said}" if key in self.headers else said

    def on_headers_complete(self) -> None:
        if self.status:
            return
        status = self.parser.get_status_code()
        if status < 200:
            self.headers = {}
        else:
            self.status = status

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.body += data

    def on_message_complete(self) -> None:
        self.complete = self.complete or bool(self.status)
