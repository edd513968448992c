"""One HTTP/1.1 connection, with limits on the resources that a peer can use before it is authenticated.

A peer that opens connections and sends bytes slowly uses memory and file descriptors. The limits are:

- A request must arrive completely within QD_REQUEST_TIMEOUT_MS.
- Its head has at most about `HEAD_BYTES_MAX` bytes.
- At most about `READ_AHEAD_BYTES_MAX` bytes of a body are buffered before a handler reads it.
- At most QD_CONNECTIONS_MAX connections are open at once.

One timer per process closes slow and idle connections: a timer per request would slow every request down. The same
timer aborts streams whose peer has read nothing for QD_STREAM_STALL_MS. A peer may read slowly, but a peer that never
reads would keep a stream open forever.

Pipelined requests are answered one at a time, in order. While one is waiting, nothing more is read from the peer.

`on_undelivered` is called when a response certainly did not reach the client. A claim uses it to release the work
in the lost response. Only losses before the kernel has taken the last byte are detected, not those in the kernel or at
the peer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import unquote

import httptools

from quarterdeck.core.errors import Invalid
from quarterdeck.core.ids import new_id
from quarterdeck.http import problem_json
from quarterdeck.http.request import Request

HEAD_BYTES_MAX = 64 * 1024
READ_AHEAD_BYTES_MAX = 64 * 1024
TIMEOUT_CHECK_SECONDS = 5.0
IDLE_SECONDS = 75.0
"""A keep-alive connection is closed after this time without a request."""
RequestHandler = Callable[[Request], Awaitable[None]]


class Connections:
    """The open connections of a server. Limits their number, closes slow and idle ones, and batches their writes."""

    def __init__(self, request_timeout_seconds: float, max_connections: int, stall_timeout_seconds: float) -> None:
        self._open: set[Connection] = set()
        self._request_timeout_seconds = request_timeout_seconds
        self._max_connections = max_connections
        self._stall_timeout_seconds = stall_timeout_seconds
        self.request_tasks: set[asyncio.Task[None]] = set()
        """One task per request in progress."""
        self.all_closed = asyncio.Event()
        self.all_closed.set()
        self.is_draining = False
        """Whether the server is stopping. If so, every response closes its connection."""
        self._unflushed: list[Connection] = []

    def __len__(self) -> int:
        return len(self._open)

    def has_capacity(self) -> bool:
        return len(self._open) < self._max_connections

    def add(self, connection: Connection) -> None:
        self._open.add(connection)
        self.all_closed.clear()

    def remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self.all_closed.set()

    def flush_soon(self, connection: Connection) -> None:
        """Flush in the next iteration of the event loop, together with all other connections.

        Waking the peers one by one costs the kernel 50 % more.
        """
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    def abort_streams(self) -> None:
        """Abort the streams that are still open while the server drains: their peers are not reading."""
        for connection in [c for c in self._open if c.is_streaming]:
            connection.abort()

    def close_idle(self) -> None:
        """Close the connections that have no request in progress."""
        for connection in [c for c in self._open if not c.is_busy]:
            connection.close()

    def check_timeouts(self) -> None:
        """Close connections that are slow, stalled or idle, and schedule the next check."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in [*self._open]:
            if connection.has_timed_out(now - self._request_timeout_seconds, now - self._stall_timeout_seconds):
                connection.abort()
            elif connection.is_idle(now - IDLE_SECONDS):
                connection.close()
        loop.call_later(
            min(TIMEOUT_CHECK_SECONDS, self._request_timeout_seconds / 2, self._stall_timeout_seconds / 2),
            self.check_timeouts,
        )


class Connection(asyncio.Protocol):
    def __init__(
        self, handle_request: RequestHandler, connections: Connections, *, is_unix_socket: bool = False
    ) -> None:
        self._handle_request = handle_request
        self._connections = connections
        self._is_unix_socket = is_unix_socket
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._incoming: Request | None = None
        """The request whose body is still arriving."""
        self._pipelined: deque[Request] = deque()
        """Requests that arrived before the previous response was sent."""
        self._current: Request | None = None
        self._writable: asyncio.Future[None] | None = None
        self._undelivered_callbacks: list[Callable[[], None]] = []
        self._write_buffer: list[bytes] = []
        self._head_size: int | None = None
        self._receiving_since: float | None = None
        """When the current request began to arrive, or the connection was made. None after a complete request."""
        self._stalled_since: float | None = None
        self._is_paused = False
        self._is_aborted = False
        self._final_bytes: bytes | None = None
        """Sent after the responses in progress, before the connection is closed. None if the connection stays open."""
        self._idle_since = 0.0

    # -- state and control, for `Connections` --------------------------------------------------------------------

    @property
    def is_streaming(self) -> bool:
        """Whether a stream is being sent."""
        return self._current is not None and self._current.is_streaming

    @property
    def is_busy(self) -> bool:
        return self._current is not None

    def is_idle(self, since: float) -> bool:
        """Whether the connection has had no request since this time."""
        return self._current is None and self._receiving_since is None and self._idle_since < since

    def has_timed_out(self, receiving_cutoff: float, stall_cutoff: float) -> bool:
        """Whether a request began to arrive before `receiving_cutoff`, or a stream stalled before `stall_cutoff`."""
        return (self._receiving_since is not None and self._receiving_since < receiving_cutoff) or (
            self._stalled_since is not None and self._stalled_since < stall_cutoff and self.is_streaming
        )

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._is_aborted = True
        self._transport.abort()

    # -- callbacks of the transport ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the same methods, but does not inherit from asyncio.Transport.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self._receiving_since = self._idle_since = self._loop.time()
        if not self._connections.has_capacity():
            transport.abort()
        self._connections.add(self)

    def eof_received(self) -> None:
        """The peer closed its sending side, which counts as a disconnect: the transport closes."""
        self._mark_disconnected()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._mark_disconnected()
        callbacks, self._undelivered_callbacks = self._undelivered_callbacks, []
        self.resume_writing()
        if exc is not None or self._is_aborted:
            for callback in callbacks:
                callback()

    def _mark_disconnected(self) -> None:
        for request in (self._incoming, self._current, *self._pipelined):
            if request is not None:
                request.mark_disconnected()
        self._pipelined.clear()

    def data_received(self, data: bytes) -> None:
        if self._receiving_since is None:
            # Set here and not in a parser callback, because the parser skips empty lines without a callback.
            self._receiving_since = self._loop.time()
        if self._head_size is not None:
            # The first part of a head is not counted: it cannot be larger than one read.
            self._head_size += len(data)
            if self._head_size > HEAD_BYTES_MAX:
                self._close_after_responses(_malformed_request_response())
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # No other protocol is supported. The request is answered and the connection closed, because the following
            # bytes may belong to that protocol.
            last_request = self._pipelined[-1] if self._pipelined else self._current
            if last_request is not None:
                last_request.keep_alive = False
            self._close_after_responses(b"")
        except httptools.HttpParserError:
            self._close_after_responses(_malformed_request_response())

    def pause_writing(self) -> None:
        self._stalled_since = self._loop.time()
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        self._stalled_since = None
        self._clear_callbacks_if_sent()
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None

    # -- callbacks of the parser ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._head_size = 0
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._head_size = None
        parser = self._parser
        request = Request(self, parser.get_method().decode(), parse_target(self._url), self._headers)
        request.is_unix_socket = self._is_unix_socket
        if parser.get_http_version() != "1.1":
            request.keep_alive = request.supports_chunked = False
        else:
            request.keep_alive = parser.should_keep_alive()
            for name, value in self._headers:
                if name == b"expect" and value.lower() == b"100-continue":
                    request.expects_continue = True
        self._incoming = request
        if self._current is None:
            self._start_request(request)
        else:
            self._pipelined.append(request)
            self._pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._incoming is not None:
            self._incoming.feed_body(body)
            if self._incoming.buffered_bytes > READ_AHEAD_BYTES_MAX:
                self._pause_reading()

    def on_message_complete(self) -> None:
        self._receiving_since = None
        if self._incoming is not None:
            self._incoming.mark_complete()
            self._incoming = None
        if self._final_bytes is not None and self._current is None:
            self.close()

    # -- requests, one at a time ---------------------------------------------------------------------------------

    def _start_request(self, request: Request) -> None:
        self._current = request
        task = self._loop.create_task(self._run_request(request))
        self._connections.request_tasks.add(task)
        task.add_done_callback(self._connections.request_tasks.discard)

    async def _run_request(self, request: Request) -> None:
        try:
            await self._handle_request(request)
        finally:
            request.abort_if_unanswered()

    @property
    def is_draining(self) -> bool:
        return self._connections.is_draining

    def write(self, data: bytes) -> None:
        if not self._write_buffer:
            self._connections.flush_soon(self)
        self._write_buffer.append(data)

    def flush(self) -> None:
        if not self._write_buffer:
            return
        parts, self._write_buffer = self._write_buffer, []
        # The peer may have disconnected since `write`. uvloop logs a warning for a write to a closing transport.
        if self._transport.is_closing():
            self._is_aborted = True
        else:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._undelivered_callbacks:
            self._loop.call_soon(self._clear_callbacks_if_sent)

    async def wait_writable(self) -> None:
        if self._writable is not None:
            await self._writable

    def read_more(self) -> None:
        self._resume_reading()

    def finish_request(self, request: Request) -> None:
        self._current = None
        self._idle_since = self._loop.time()
        if not request.keep_alive:
            self._pipelined.clear()
            if request.expects_continue:
                # The client was not sent `100 Continue`, so its body does not follow.
                self._incoming = None
            self._close_after_responses(b"")
        elif self._pipelined:
            self._start_request(self._pipelined.popleft())
        elif self._final_bytes is not None:
            self._close_after_responses(self._final_bytes)
        else:
            self._resume_reading()

    def _close_after_responses(self, final_bytes: bytes) -> None:
        """Close the connection once the responses to the earlier requests are sent."""
        self._final_bytes = final_bytes
        if self._current is not None:
            self._pause_reading()
            return
        self.write(final_bytes)
        if self._incoming is None or final_bytes:
            self.close()
        else:
            # Closing while the peer is sending would reset the connection, and the peer might never read its response.
            # So the rest of the body is read and dropped until the request times out.
            self._resume_reading()

    # -- undelivered responses -----------------------------------------------------------------------------------

    def track_delivery(self, on_undelivered: Callable[[], None]) -> None:
        self._undelivered_callbacks.append(on_undelivered)
        # With a limit of 0, `resume_writing` is called when the kernel has taken the last byte.
        self._transport.set_write_buffer_limits(high=0)

    def _clear_callbacks_if_sent(self) -> None:
        # A transport that failed also has an empty buffer, and reports the loss one loop iteration later. So
        # `is_closing` is checked too.
        is_all_sent = not self._write_buffer and not self._transport.get_write_buffer_size()
        if self._undelivered_callbacks and is_all_sent and not self._transport.is_closing():
            self._undelivered_callbacks.clear()
            self._transport.set_write_buffer_limits()

    # -- backpressure on the peer --------------------------------------------------------------------------------

    def _pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()


def parse_target(url: bytes) -> tuple[str, bytes]:
    """Return the percent-decoded path, and the query as it was sent."""
    if not url.startswith(b"/"):
        parsed = httptools.parse_url(url)
        url = (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
    path, _, query = url.partition(b"#")[0].partition(b"?")
    text = path.decode("ascii")
    return (unquote(text) if "%" in text else text), query


def _malformed_request_response() -> bytes:
    """Build the response to bytes that are not HTTP. They never become a `Request`, but get the usual problem body."""
    problem = Invalid("invalid_http", "This is not a well-formed HTTP/1.1 request. The connection is closed.")
    request_id = new_id()
    content = problem_json.encode_body(problem, request_id)
    head = [b"HTTP/1.1 400 Bad Request", b"content-length: %d" % len(content), b"connection: close"]
    headers = [*problem_json.problem_headers(problem), (b"x-request-id", request_id.encode())]
    head += [name + b": " + value for name, value in headers]
    return b"\r\n".join([*head, b"", content])
