"""One request and its response.

The connection creates a `Request` when the head has arrived. The dispatcher answers it at once (`respond`) or as a
stream (`start_stream`, `send_chunk`, `end_stream`). After the client has disconnected, writes are dropped silently.
Only a response with `on_undelivered` reports the loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Protocol

Headers = Sequence[tuple[bytes, bytes]]
NO_CONTENT = 204
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete or answered."""


class BodyTooLarge(Exception):
    """The body is larger than the reader allows."""


class ClientConnection(Protocol):
    """What a request needs from its connection."""

    @property
    def is_draining(self) -> bool:
        """Whether the connection closes after this response."""

    def write(self, data: bytes) -> None: ...
    def flush(self) -> None: ...
    def track_delivery(self, on_undelivered: Callable[[], None]) -> None: ...
    async def wait_writable(self) -> None: ...
    def read_more(self) -> None: ...
    def finish_request(self, request: Request) -> None: ...
    def abort(self) -> None: ...


class Request:
    __slots__ = (
        "_body_arrived",
        "_body_parts",
        "_buffered_bytes",
        "_connection",
        "_disconnect_callback",
        "_disconnected",
        "_is_answered",
        "_is_head",
        "_keeps_body",
        "expects_continue",
        "headers",
        "is_complete",
        "is_disconnected",
        "is_streaming",
        "is_unix_socket",
        "keep_alive",
        "method",
        "path",
        "query",
        "supports_chunked",
    )

    def __init__(
        self, connection: ClientConnection, method: str, target: tuple[str, bytes], headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.method = method
        self.path, self.query = target
        self.headers = headers
        self.keep_alive = True
        """Whether the connection can take another request after this one."""
        self.supports_chunked = True
        self.expects_continue = False
        """Whether the client sends its body only after `100 Continue`."""
        self.is_complete = False
        """Whether the body has arrived completely."""
        self.is_disconnected = False
        self.is_unix_socket = False
        """Whether the request came over the Unix socket. It is set by the listener, so a client cannot forge it."""
        self.is_streaming = False
        self._connection = connection
        self._is_head = method == "HEAD"
        self._body_parts: list[bytes] = []
        self._buffered_bytes = 0
        self._keeps_body = True
        self._is_answered = False
        self._body_arrived: asyncio.Future[None] | None = None
        self._disconnected: asyncio.Future[None] | None = None
        self._disconnect_callback: Callable[[], object] | None = None

    # -- reading -------------------------------------------------------------------------------------------------

    async def read_body(self, max_bytes: int) -> bytes:
        """Read the complete body. Raises `BodyTooLarge` as soon as more than `max_bytes` have arrived."""
        if self.expects_continue and not self.is_complete:
            self._connection.write(CONTINUE)
            self.expects_continue = False
        while not self.is_complete and not self.is_disconnected and self._buffered_bytes <= max_bytes:
            self._body_arrived = asyncio.get_running_loop().create_future()
            self._connection.read_more()
            await self._body_arrived
        if self._buffered_bytes > max_bytes:
            raise BodyTooLarge
        if not self.is_complete:
            raise ClientDisconnected
        return self._body_parts[0] if len(self._body_parts) == 1 else b"".join(self._body_parts)

    async def wait_disconnected(self) -> None:
        if not self.is_disconnected:
            self._disconnected = asyncio.get_running_loop().create_future()
            await self._disconnected

    def set_disconnect_callback(self, callback: Callable[[], object] | None) -> None:
        """Set the function that is called when the client disconnects, or now if it already has. None removes it."""
        self._disconnect_callback = callback
        if self.is_disconnected and callback is not None:
            callback()

    # -- called by the connection --------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes

    def feed_body(self, data: bytes) -> None:
        if self._keeps_body:
            self._body_parts.append(data)
            self._buffered_bytes += len(data)
            _resolve(self._body_arrived)

    def mark_complete(self) -> None:
        self.is_complete = True
        _resolve(self._body_arrived)

    def mark_disconnected(self) -> None:
        self.is_disconnected = True
        _resolve(self._body_arrived)
        _resolve(self._disconnected)
        callback, self._disconnect_callback = self._disconnect_callback, None
        if callback is not None:
            callback()

    # -- responding ----------------------------------------------------------------------------------------------

    def respond(
        self, status: int, headers: Headers, content: bytes, on_undelivered: Callable[[], None] | None = None
    ) -> None:
        """Send the complete response with one write. If the client has disconnected, call `on_undelivered` instead."""
        if self.is_disconnected:
            if on_undelivered:
                on_undelivered()
            return
        parts = [STATUS_LINES[status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        if status != NO_CONTENT:
            parts.append(b"content-length: %d\r\n" % len(content))
        parts.append(b"connection: close\r\n\r\n" if self._closes_connection() else b"\r\n")
        if not self._is_head:
            parts.append(content)
        if on_undelivered:
            self._connection.track_delivery(on_undelivered)
        self._connection.write(b"".join(parts))
        self._finish()

    def start_stream(self, status: int, headers: Headers) -> None:
        """Send the head of a response of unknown length.

        An HTTP/1.0 client does not support chunked encoding, so its response ends when the connection closes.
        """
        parts = [STATUS_LINES[status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        self.is_streaming = True
        parts.append(b"transfer-encoding: chunked\r\n" if self.supports_chunked else b"")
        parts.append(b"connection: close\r\n\r\n" if self._closes_connection() else b"\r\n")
        if not self.is_disconnected:
            self._connection.write(b"".join(parts))

    async def send_chunk(self, chunk: bytes) -> None:
        """Send one chunk. If the client is reading too slowly, wait until more can be written."""
        if not self.is_disconnected and not self._is_head:
            self._connection.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self.supports_chunked else chunk)
            self._connection.flush()
            await self._connection.wait_writable()

    def end_stream(self) -> None:
        self.is_streaming = False
        if not self.is_disconnected:
            if self.supports_chunked and not self._is_head:
                self._connection.write(LAST_CHUNK)
            self._finish()

    def abort_if_unanswered(self) -> None:
        """Abort the connection if the response is missing or incomplete, so that the client stops waiting for it."""
        if not self._is_answered and not self.is_disconnected:
            self._connection.abort()

    def _closes_connection(self) -> bool:
        # A client that waits for `100 Continue` and gets a response instead may or may not send its body, so it is
        # unknown where its next request begins.
        is_body_pending = self.expects_continue and not self.is_complete
        self.keep_alive = self.keep_alive and not is_body_pending and not self._connection.is_draining
        return not self.keep_alive

    def _finish(self) -> None:
        self._is_answered = True
        # The rest of the body is read and dropped. Closing now would reset the connection, and the client might never
        # see its response.
        self._keeps_body = False
        self._body_parts.clear()
        self._buffered_bytes = 0
        self._connection.finish_request(self)


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


async def cancel_on_disconnect(pending_reply: Awaitable[object], request: Request) -> object:
    """Await a reply. If the client disconnects first, cancel the reply and raise `ClientDisconnected`."""
    task = asyncio.current_task()
    assert task is not None
    request.set_disconnect_callback(task.cancel)
    try:
        return await pending_reply
    except asyncio.CancelledError:
        if not request.is_disconnected:
            raise
        task.uncancel()
        raise ClientDisconnected from None
    finally:
        request.set_disconnect_callback(None)
