"""One connection: uvicorn's protocol, with bounds on what a peer may do before it has said anything.

A peer that opens connections and trickles bytes costs memory and descriptors for as long as it is let. So a request
must have arrived whole within QD_REQUEST_TIMEOUT_MS, its head may not be larger than `HEAD_MAX`, and there may be no
more than QD_CONNECTIONS_MAX connections at once. One timer per process looks for the slow ones: a timer per request
would cost every honest caller. It also finds the streams whose peer has taken nothing for QD_STREAM_STALL_MS: one that
reads slowly is no trouble, one that never reads holds a place.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quarterdeck.core.errors import Invalid
from quarterdeck.http import problems

HEAD_MAX = 64 * 1024
LOOK_EVERY = 5.0


class Connections:
    """Every open connection of a server: how many, which are slow, and when the last has gone."""

    def __init__(self, request_seconds: float, most: int, stall_seconds: float) -> None:
        self._open: set[Connection] = set()
        self._request_seconds = request_seconds
        self._most = most
        self._stall_seconds = stall_seconds
        self.none_left = asyncio.Event()
        self.none_left.set()

    def __len__(self) -> int:
        return len(self._open)

    def has_room(self) -> bool:
        return len(self._open) < self._most

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)
        self.none_left.clear()

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self.none_left.set()

    def cut_streams(self) -> None:
        """Ends the streams that did not end when they were told to: their peers do not read."""
        for connection in [c for c in self._open if c.is_streaming]:
            connection.transport.abort()

    def watch(self) -> None:
        """Closes what is slow, now and from now on."""
        loop = asyncio.get_running_loop()
        limit = loop.time() - self._request_seconds
        stalled = loop.time() - self._stall_seconds
        for connection in [c for c in self._open if c.is_slow(limit) or c.is_stalled(stalled)]:
            connection.transport.abort()
        loop.call_later(min(LOOK_EVERY, self._request_seconds / 2, self._stall_seconds / 2), self.watch)


class GatheredTransport:
    """Sends what is written in one turn of the loop with one system call.

    uvicorn writes an answer's head and its body apart, and the second call costs a quarter of a small request.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._soon = loop.call_soon
        self._parts: list[bytes] = []
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_protocol = transport.set_protocol

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        # The peer may have gone in the turn between; uvloop would complain of what nobody is there to read.
        if parts and not self.is_closing():
            self._transport.write(b"".join(parts))


class Connection(HttpToolsProtocol):
    """uvicorn's protocol; `of` makes it know the connections it is one of."""

    all: Connections

    @classmethod
    def of(cls, connections: Connections) -> type[Connection]:
        return type("Connection", (cls,), {"all": connections})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.waiting_since: float | None = self.loop.time()
        self._stalled_since: float | None = None
        self._head_size: int | None = None
        gathered = GatheredTransport(transport, self.loop)
        super().connection_made(gathered)  # type: ignore[arg-type]
        if not self.all.has_room():
            gathered.abort()
        self.all.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.all.closed(self)

    @property
    def is_streaming(self) -> bool:
        """Whether an answer without an end is under way: all others say how long they are."""
        return (
            self.cycle is not None and bool(self.cycle.chunked_encoding) and not self.cycle.response_complete
        )

    def is_slow(self, limit: float) -> bool:
        return self.waiting_since is not None and self.waiting_since < limit

    def is_stalled(self, limit: float) -> bool:
        return self._stalled_since is not None and self._stalled_since < limit and self.is_streaming

    def pause_writing(self) -> None:
        self._stalled_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self.waiting_since is None:
            # Set by the first byte and not by the parser, which skips empty lines without a word.
            self.waiting_since = self.loop.time()
        if self._head_size is not None:
            # Only what comes in several pieces is counted: the first piece cannot be larger than a read.
            self._head_size += len(data)
            if self._head_size > HEAD_MAX:
                self.send_400_response("")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._head_size = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_size = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.waiting_since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self.transport.write(NOT_HTTP)
        self.transport.close()


def _not_http() -> bytes:
    """What a peer is told whose bytes are not HTTP: it never becomes a request, but hears of it in the usual form."""
    problem = Invalid("invalid_http", "This is not a well-formed HTTP/1.1 request; the connection is closed.")
    content = problems.body(problem, "")
    head = [b"HTTP/1.1 400 Bad Request", b"content-length: %d" % len(content), b"connection: close"]
    head += [name + b": " + value for name, value in problems.headers(problem)]
    return b"\r\n".join([*head, b"", content])


NOT_HTTP = _not_http()
