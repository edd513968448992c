"""One request, and the way back to whoever sent it.

The connection makes it when the head has arrived, and the shell answers it: at once (`answer`), or piece by piece
(`begin`, `send`, `end`). What is asked after the client has gone goes nowhere, and says so only where it matters: to
whoever gave `unsent`.
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
    """The client went away before it had said what it wanted."""


class BodyTooLarge(Exception):
    """The body is larger than whoever reads it would have."""


class ClientConnection(Protocol):
    """What of a connection a request needs."""

    @property
    def is_draining(self) -> bool:
        """Whether this answer is to be the last one of its connection."""

    def write(self, data: bytes) -> None: ...
    def flush(self) -> None: ...
    def track_delivery(self, on_undelivered: Callable[[], None]) -> None: ...
    async def wait_writable(self) -> None: ...
    def read_more(self) -> None: ...
    def finish_request(self, request: Request) -> None: ...
    def abort(self) -> None: ...


class Request:
    __slots__ = (
        "_body",
        "_body_arrived",
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
        "is_on_socket",
        "is_streaming",
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
        """The connection is good for another request after this one."""
        self.supports_chunked = True
        self.expects_continue = False
        """The client sends its body only when it is told to."""
        self.is_complete = False
        """All of it has arrived."""
        self.is_disconnected = False
        self.is_on_socket = False
        """It came over the unix socket: the listener says so, and nothing that a client could send."""
        self.is_streaming = False
        self._connection = connection
        self._is_head = method == "HEAD"
        self._body: list[bytes] = []
        self._buffered_bytes = 0
        self._keeps_body = True
        self._is_answered = False
        self._body_arrived: asyncio.Future[None] | None = None
        self._disconnected: asyncio.Future[None] | None = None
        self._disconnect_callback: Callable[[], object] | None = None

    # -- what comes in -------------------------------------------------------------------------------------------

    async def read_body(self, max_bytes: int) -> bytes:
        """The whole of it, or `TooMuch` as soon as that is known."""
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
        return self._body[0] if len(self._body) == 1 else b"".join(self._body)

    async def wait_disconnected(self) -> None:
        if not self.is_disconnected:
            self._disconnected = asyncio.get_running_loop().create_future()
            await self._disconnected

    def on_disconnect(self, callback: Callable[[], object] | None) -> None:
        """Has somebody told as soon as the client is gone; at once, if it is."""
        self._disconnect_callback = callback
        if self.is_disconnected and callback is not None:
            callback()

    # -- told by the connection ----------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes

    def feed_body(self, data: bytes) -> None:
        if self._keeps_body:
            self._body.append(data)
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

    # -- what goes out -------------------------------------------------------------------------------------------

    def respond(
        self, status: int, headers: Headers, content: bytes, on_undelivered: Callable[[], None] | None = None
    ) -> None:
        """All of it, with one system call."""
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
        """The head of an answer whose length nobody knows. To HTTP/1.0, which knows no chunks, the connection's end is
        the answer's."""
        parts = [STATUS_LINES[status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        self.is_streaming = True
        parts.append(b"transfer-encoding: chunked\r\n" if self.supports_chunked else b"")
        parts.append(b"connection: close\r\n\r\n" if self._closes_connection() else b"\r\n")
        if not self.is_disconnected:
            self._connection.write(b"".join(parts))

    async def send_chunk(self, chunk: bytes) -> None:
        """No faster than the client reads."""
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
        """Cuts the connection if there was no whole answer: whoever waits for the rest is told by its end."""
        if not self._is_answered and not self.is_disconnected:
            self._connection.abort()

    def _closes_connection(self) -> bool:
        # A client that was to be told whether to send its body, and is told this instead, may send it or not: where the
        # next request would begin, nobody knows.
        is_body_pending = self.expects_continue and not self.is_complete
        self.keep_alive = self.keep_alive and not is_body_pending and not self._connection.is_draining
        return not self.keep_alive

    def _finish(self) -> None:
        self._is_answered = True
        # Whatever is still to come of its body is read and let go: closed now, the connection would be reset, and the
        # client might never see its answer.
        self._keeps_body = False
        self._body.clear()
        self._buffered_bytes = 0
        self._connection.finish_request(self)


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


async def cancel_on_disconnect(pending_reply: Awaitable[object], request: Request) -> object:
    task = asyncio.current_task()
    assert task is not None
    request.on_disconnect(task.cancel)
    try:
        return await pending_reply
    except asyncio.CancelledError:
        if not request.is_disconnected:
            raise
        task.uncancel()
        raise ClientDisconnected from None
    finally:
        request.on_disconnect(None)
