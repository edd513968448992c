"""One exchange: asyncio's streams and not a library in a thread, because the time limit must hold for the whole of it,
and a thread cannot be called back from a server that sends one byte a second. httptools, which also reads what the
server is asked, parses the answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

import httptools

from quarterdeck.engine.outbound_http.ssrf_guard import Resolve, Resolver, SsrfGuard, resolve_target
from quarterdeck.engine.outbound_http.types import (
    InvalidResponse,
    Request,
    Response,
    ResponseLimits,
    ResponseTooLarge,
    Target,
    TimedOut,
    Unreachable,
)

_CHUNK_BYTES = 64 * 1024
_FRAMING_BYTES_MAX = 32 * 1024
"""Beyond head and body: what chunks and interim answers may take."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class OutboundClient:
    """Asks one URL at a time, any number of times at once."""

    def __init__(self, guard: SsrfGuard, limits: ResponseLimits | None = None, resolve: Resolve | None = None) -> None:
        self._guard = guard
        self._limits = limits or ResponseLimits()
        self._resolve = resolve or Resolver()
        self._tls: ssl.SSLContext | None = None

    async def send(self, request: Request, timeout_seconds: float) -> Response:
        """The answer, whatever its status. Raises an OutwardError."""
        target = Target.parse(request.url)
        message = request.encode(target)
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds) as timeout:
                addresses = await resolve_target(target, self._guard, self._resolve, request.requester)
                reader, writer = await self._connect(target, addresses, deadline)
                return await self._exchange(reader, writer, message)
        except ssl.SSLCertVerificationError:
            raise Unreachable("its certificate does not hold") from None
        except (OSError, UnicodeError) as error:
            # A time-out of the network is an OSError of the same name as ours.
            if timeout.expired():
                raise TimedOut(f"no answer within {timeout_seconds:g} s") from None
            raise Unreachable(f"it cannot be reached ({type(error).__name__})") from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise InvalidResponse("the answer is not HTTP") from None

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> Response:
        try:
            # Not drained: an endpoint may answer before it has read everything, and what it says then is the answer.
            writer.write(message)
            return await self._read_response(reader)
        finally:
            # Not a polite close: a TLS peer that never answers one would keep the socket for half a minute.
            writer.transport.abort()

    async def _connect(self, target: Target, addresses: Sequence[str], deadline: float) -> Streams:
        """To the first that can be connected to. One that swallows everything leaves the others their share of time."""
        *others, last = addresses
        for index, address in enumerate(others):
            remaining = deadline - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(remaining / (len(addresses) - index)):
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
        return await asyncio.open_connection(address, target.port, ssl=self._tls, server_hostname=target.server_name)

    async def _read_response(self, reader: asyncio.StreamReader) -> Response:
        collector = _ResponseCollector()
        parser = collector.parser = httptools.HttpResponseParser(collector)
        received = 0
        while not collector.is_complete and (data := await reader.read(_CHUNK_BYTES)):
            received += len(data)
            try:
                parser.feed_data(data)
            except httptools.HttpParserError:
                # What follows a whole answer is nobody's; it was to be the last thing said here.
                if not collector.is_complete:
                    raise
            self._check_limits(collector, received)
        if not collector.has_full_response:
            raise InvalidResponse("the answer ends before its end")
        return Response(collector.status, bytes(collector.body), collector.headers)

    def _check_limits(self, collector: _ResponseCollector, received: int) -> None:
        limits = self._limits
        if len(collector.body) > limits.body_bytes:
            raise ResponseTooLarge(f"the answer is larger than {limits.body_bytes} bytes", collector.status)
        if collector.head_bytes > limits.head_bytes or (received > limits.head_bytes and not collector.status):
            raise ResponseTooLarge(f"the head of the answer is larger than {limits.head_bytes} bytes")
        if received > limits.head_bytes + limits.body_bytes + _FRAMING_BYTES_MAX:
            raise ResponseTooLarge("the answer is larger than what it says", collector.status or None)


class _ResponseCollector:
    """One answer, as the parser tells of it."""

    def __init__(self) -> None:
        self.parser: httptools.HttpResponseParser
        self.status = 0
        """Once the head is whole; an interim answer has none that counts."""
        self.headers: dict[str, str] = {}
        self.head_bytes = 0
        """Bytes of headers so far, also of interim answers."""
        self.body = bytearray()
        self.is_complete = False

    @property
    def has_full_response(self) -> bool:
        """Also if the connection has ended: without a length, that is how an answer ends."""
        ends_with_connection = "content-length" not in self.headers and "transfer-encoding" not in self.headers
        return self.is_complete or bool(self.status and ends_with_connection)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.head_bytes += len(name) + len(value)
        if self.status:
            # A trailer, or the head of something that nobody asked for.
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if self.status:
            return
        status = self.parser.get_status_code()
        if status < 200:
            self.headers = {}
        else:
            self.status = status

    def on_body(self, data: bytes) -> None:
        if not self.is_complete:
            self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = self.is_complete or bool(self.status)
