"""One HTTP connection on an event loop, for successive exchanges or for one stream.

An exchange that times out or is cancelled closes its connection: the late response must not be read as the response
to the next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from quarterdeck.client.http_parser import ResponseParser
from quarterdeck.client.http_types import Address, Lost, Response, TimedOut, error_text

BUFFER_BYTES_MAX = 1024 * 1024
"""How much of a stream is buffered if its consumer is slower than the server. Then reading from the socket pauses."""


class AsyncConnection(asyncio.Protocol):
    """One connection. `pool.Connector` opens it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._data_arrived: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_closed = False
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    @property
    def has_response_data(self) -> bool:
        """Whether any part of the current response has arrived."""
        return self._parser is not None and self._parser.has_data

    # -- called by the event loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            # No request is in flight, so the data is unexpected: for example, a proxy's error before it disconnects.
            self.close()
            return
        try:
            parser.feed(data)
        except Lost as error:
            self._error = error
            self.close()
        is_buffer_full = parser.buffered_body_size > BUFFER_BYTES_MAX
        if is_buffer_full and parser.is_chunked and self._transport and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        if self._error is None:
            self._error = self._disconnect_error(exc)
        self._wake_reader()

    def _disconnect_error(self, exc: Exception | None) -> Exception | None:
        if exc is not None:
            return Lost("answer_lost", f"The connection to {self.address} was lost: {error_text(exc)}.")
        try:
            if self._parser is not None:
                self._parser.feed_eof()
        except Lost as error:
            return error
        return None

    def _wake_reader(self) -> None:
        if self._data_arrived is not None and not self._data_arrived.done():
            self._data_arrived.set_result(None)

    # -- called by clients -----------------------------------------------------------------------------------------

    async def exchange(self, data: bytes, timeout_seconds: float) -> Response:
        """Send a request and read the complete response. Closes the connection if it raises."""
        parser = await self._receive_response(data, timeout_seconds, may_stream=False)
        self._parser = None
        self.idle_since = self._loop.time()
        if not parser.keep_alive:
            self.close()
        return parser.response()

    async def open_stream(self, data: bytes, timeout_seconds: float) -> Response:
        """Send a request whose response may be a stream.

        If it is a stream, the returned body is empty: read it with `iter_body`. Any other response is read completely.
        """
        parser = await self._receive_response(data, timeout_seconds, may_stream=True)
        if parser.is_stream:
            return Response(parser.status, parser.headers, b"")
        self.close()
        return parser.response()

    async def iter_body(self, idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """Yield the body of a stream as it arrives. Closes the connection at the end."""
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
            raise TimedOut("stream_silent", f"{self.address} sent nothing for {idle_seconds:g} s.") from None
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection immediately and discard unsent data."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _receive_response(self, data: bytes, timeout_seconds: float, *, may_stream: bool) -> ResponseParser:
        """Send the request and read the response: all of it, or at least the head if it is a stream and may be one."""
        if self._is_closed or self._transport is None:
            raise Lost("answer_lost", f"The connection to {self.address} is closed.")
        parser = self._parser = ResponseParser()
        self._transport.write(data)
        try:
            async with asyncio.timeout(timeout_seconds):
                while not (parser.is_complete or (may_stream and parser.is_stream)):
                    await self._wait_for_data()
        except TimeoutError:
            self.close()
            raise TimedOut("answer_timeout", f"{self.address} did not answer within {timeout_seconds:g} s.") from None
        except BaseException:  # including a cancellation: the next request must not read the rest of this response
            self.close()
            raise
        return parser

    async def _wait_for_data(self) -> None:
        """Return when data has arrived. Raises if the connection is lost or closed and nothing is left to read."""
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise Lost("answer_lost", f"The connection to {self.address} is closed.")
        self._data_arrived = self._loop.create_future()
        try:
            await self._data_arrived
        finally:
            self._data_arrived = None
        if self._error is not None and not (
            self._parser and (self._parser.is_complete or self._parser.buffered_body_size)
        ):
            raise self._error

    def _resume_reading(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
