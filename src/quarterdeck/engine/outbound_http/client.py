"""One HTTP call, with asyncio streams and httptools.

A library call in a thread would not work: the time limit must cover the complete call, and a thread cannot be
interrupted while a server sends one byte a second. The HTTP server uses httptools, too.
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
"""Allowed in addition to headers and body, for chunk framing and interim responses."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class OutboundClient:
    """Sends requests. Any number of calls may run at once."""

    def __init__(self, guard: SsrfGuard, limits: ResponseLimits | None = None, resolve: Resolve | None = None) -> None:
        self._guard = guard
        self._limits = limits or ResponseLimits()
        self._resolve = resolve or Resolver()
        self._tls: ssl.SSLContext | None = None

    async def send(self, request: Request, timeout_seconds: float) -> Response:
        """Send a request and return the response, whatever its status. Raises `OutboundError`."""
        target = Target.parse(request.url)
        message = request.encode(target)
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds) as timeout:
                addresses = await resolve_target(target, self._guard, self._resolve, request.requester)
                reader, writer = await self._connect(target, addresses, deadline)
                return await self._exchange(reader, writer, message)
        except ssl.SSLCertVerificationError:
            raise Unreachable("its certificate is not valid") from None
        except (OSError, UnicodeError) as error:
            # TimeoutError is an OSError, and a network timeout (ETIMEDOUT) raises it, too, so check the timer.
            if timeout.expired():
                raise TimedOut(f"no response within {timeout_seconds:g} s") from None
            raise Unreachable(f"the connection failed ({type(error).__name__})") from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise InvalidResponse("the response is not valid HTTP") from None

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> Response:
        try:
            # Not drained: an endpoint may respond before it has read everything, and that response counts.
            writer.write(message)
            return await self._read_response(reader)
        finally:
            # Not a graceful close: a TLS peer that does not respond to it would keep the socket open for 30 seconds.
            writer.transport.abort()

    async def _connect(self, target: Target, addresses: Sequence[str], deadline: float) -> Streams:
        """Connect to the first address that works. Each gets only a share of the time, so that all can be tried."""
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
        if not target.uses_tls:
            return await asyncio.open_connection(address, target.port)
        if self._tls is None:
            # Created on first use and kept: loading the system's certificates takes tens of milliseconds.
            self._tls = ssl.create_default_context()
        return await asyncio.open_connection(address, target.port, ssl=self._tls, server_hostname=target.server_name)

    async def _read_response(self, reader: asyncio.StreamReader) -> Response:
        collector = _ResponseCollector()
        parser = collector.parser = httptools.HttpResponseParser(collector)
        received_bytes = 0
        while not collector.is_complete and (data := await reader.read(_CHUNK_BYTES)):
            received_bytes += len(data)
            try:
                parser.feed_data(data)
            except httptools.HttpParserError:
                # Data after a complete response is ignored.
                if not collector.is_complete:
                    raise
            self._check_limits(collector, received_bytes)
        if not collector.has_full_response:
            raise InvalidResponse("the response is incomplete")
        return Response(collector.status, bytes(collector.body), collector.headers)

    def _check_limits(self, collector: _ResponseCollector, received_bytes: int) -> None:
        limits = self._limits
        if len(collector.body) > limits.body_bytes:
            raise ResponseTooLarge(f"the response is larger than {limits.body_bytes} bytes", collector.status)
        if collector.head_bytes > limits.head_bytes or (received_bytes > limits.head_bytes and not collector.status):
            raise ResponseTooLarge(f"the response headers are larger than {limits.head_bytes} bytes")
        if received_bytes > limits.head_bytes + limits.body_bytes + _FRAMING_BYTES_MAX:
            raise ResponseTooLarge("the response has too much data besides headers and body", collector.status or None)


class _ResponseCollector:
    """Collects one response from the parser's callbacks."""

    def __init__(self) -> None:
        self.parser: httptools.HttpResponseParser
        self.status = 0
        """Set when the headers are complete. Interim responses (1xx) do not count."""
        self.headers: dict[str, str] = {}
        self.head_bytes = 0
        """Bytes of headers so far, including those of interim responses."""
        self.body = bytearray()
        self.is_complete = False

    @property
    def has_full_response(self) -> bool:
        """Whether the response is complete. A response without a length ends when the connection closes."""
        ends_with_connection = "content-length" not in self.headers and "transfer-encoding" not in self.headers
        return self.is_complete or bool(self.status and ends_with_connection)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.head_bytes += len(name) + len(value)
        if self.status:
            # A trailer, or a header of a second response.
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
