"""One connection on an event loop: an exchange after another, or one answer without an end.

An exchange that is given up — by its time, by a cancellation — takes its connection along: what would still come
belongs to nobody, and must not be read as the answer to the next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from quarterdeck.client.http_parser import ResponseParser
from quarterdeck.client.http_types import Address, Lost, Response, TimedOut, error_text

BUFFER_MAX = 1024 * 1024
"""Of a stream whose reader is slower than the server: beyond this the server has to wait."""


class AsyncConnection(asyncio.Protocol):
    """A connection. Opened by `pool`, which also says where to."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.responses_read = 0
        """Answers that were read from it."""
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._data_arrived: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_closed = False
        self._paused = False

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    @property
    def has_response_data(self) -> bool:
        """Whether anything of the present answer has come."""
        return self._parser is not None and self._parser.has_data

    # -- what the loop says ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            # Nothing was asked: a proxy's goodbye, or an answer that was given up. No request may follow it.
            self.close()
            return
        try:
            parser.feed(data)
        except Lost as error:
            self._error = error
            self.close()
        if parser.body_size > BUFFER_MAX and parser.is_chunked and self._transport and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        if self._error is None:
            self._error = self._end_error(exc)
        self._wake_reader()

    def _end_error(self, exc: Exception | None) -> Exception | None:
        if exc is not None:
            return Lost("answer_lost", f"The connection to {self.address} broke: {error_text(exc)}.")
        try:
            if self._parser is not None:
                self._parser.feed_eof()
        except Lost as error:
            return error
        return None

    def _wake_reader(self) -> None:
        if self._data_arrived is not None and not self._data_arrived.done():
            self._data_arrived.set_result(None)

    # -- what a caller says ----------------------------------------------------------------------------------------

    async def exchange(self, data: bytes, seconds: float) -> Response:
        """Sends a request and reads its whole answer. Raises `Lost` or `TimedOut`, and the connection is gone."""
        parser = self._send_request(data)
        try:
            async with asyncio.timeout(seconds):
                while not parser.is_complete:
                    await self._wait_for_data()
        except TimeoutError:
            self.close()
            raise TimedOut("answer_timeout", f"{self.address} did not answer within {seconds:g} s.") from None
        except BaseException:  # a cancellation too: the next request must not read the rest of this answer
            self.close()
            raise
        self._parser = None
        self.responses_read += 1
        self.idle_since = self._loop.time()
        if not parser.keep_alive:
            self.close()
        return parser.response()

    async def open_stream(self, data: bytes, seconds: float) -> Response:
        """Sends a request whose answer may have no end. Of one that has, all is read; of the other `pieces` gives the
        body, which is empty here."""
        parser = self._send_request(data)
        try:
            async with asyncio.timeout(seconds):
                while not (parser.is_complete or (parser.has_head and self._is_stream(parser))):
                    await self._wait_for_data()
        except TimeoutError:
            self.close()
            raise TimedOut("answer_timeout", f"{self.address} did not answer within {seconds:g} s.") from None
        except BaseException:  # a cancellation too: the next request must not read the rest of this answer
            self.close()
            raise
        if self._is_stream(parser):
            return Response(parser.status, parser.headers, b"")
        self.close()
        return parser.response()

    async def iter_body(self, idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """The body of an answer without an end, as it comes. The connection does not outlive it."""
        parser = self._parser
        assert parser is not None
        try:
            while True:
                if chunk := parser.take_body():
                    self._resume_reading()
                    yield chunk
                elif parser.is_complete:
                    return
                else:
                    async with asyncio.timeout(idle_seconds):
                        await self._wait_for_data()
        except TimeoutError:
            raise TimedOut("stream_silent", f"{self.address} has been silent for too long.") from None
        finally:
            self.close()

    def close(self) -> None:
        """At once: nothing that is still to be sent is worth waiting for."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def _send_request(self, data: bytes) -> ResponseParser:
        if self._is_closed or self._transport is None:
            raise Lost("answer_lost", f"The connection to {self.address} has ended.")
        parser = self._parser = ResponseParser()
        self._transport.write(data)
        return parser

    async def _wait_for_data(self) -> None:
        """Returns when something has come; raises what keeps anything from coming."""
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise Lost("answer_lost", f"The connection to {self.address} has ended.")
        self._data_arrived = self._loop.create_future()
        try:
            await self._data_arrived
        finally:
            self._data_arrived = None
        if self._error is not None and not (self._parser and (self._parser.is_complete or self._parser.body_size)):
            raise self._error

    def _resume_reading(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    @staticmethod
    def _is_stream(parser: ResponseParser) -> bool:
        return parser.status == 200 and parser.is_chunked
