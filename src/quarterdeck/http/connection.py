"""One connection: HTTP/1.1 as its parser hears it, with bounds on what a peer may do before it has said anything.

A peer that opens connections and trickles bytes costs memory and descriptors for as long as it is let. So a request
must have arrived whole within QD_REQUEST_TIMEOUT_MS, its head may not be larger than `HEAD_MAX`, of a body that nobody
has asked for only about `AHEAD_MAX` is read, and there may be no more than QD_CONNECTIONS_MAX connections at once. One
timer per process looks for the slow ones, and for those that have said nothing for long: a timer per request would
cost every honest caller. It also finds the streams whose peer has taken nothing for QD_STREAM_STALL_MS: one that reads
slowly is no trouble, one that never reads holds a place.

Requests that a peer sends without waiting for answers are answered in their order, one at a time; meanwhile nothing
more is read from it.

`unsent`: the answer to a claim is worth something, and whoever gave it out wants to know if it surely reached nobody.
That is known until the kernel has taken the last byte; what the kernel, or the peer, loses later nobody here can know.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import unquote

import httptools

from quarterdeck.core.errors import Invalid
from quarterdeck.http import problem_json
from quarterdeck.http.request import Request

HEAD_MAX = 64 * 1024
AHEAD_MAX = 64 * 1024
LOOK_EVERY = 5.0
IDLE_SECONDS = 75.0
"""After which a connection that is kept open and says nothing is closed."""
Answer = Callable[[Request], Awaitable[None]]


class Connections:
    """Every open connection of a server: how many, which are slow, and when the last has gone."""

    def __init__(self, request_seconds: float, most: int, stall_seconds: float) -> None:
        self._open: set[Connection] = set()
        self._request_seconds = request_seconds
        self._most = most
        self._stall_seconds = stall_seconds
        self.answering: set[asyncio.Task[None]] = set()
        """What is being answered."""
        self.none_left = asyncio.Event()
        self.none_left.set()
        self.says_goodbye = False
        """The server stops: every answer is the last one of its connection."""
        self._unflushed: list[Connection] = []

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

    def flush_soon(self, connection: Connection) -> None:
        """What is answered in one turn of the loop leaves at its end, all at once: peers that are woken one by one cost
        the kernel half as much again."""
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    def cut_streams(self) -> None:
        """Ends the streams that did not end when they were told to: their peers do not read."""
        for connection in [c for c in self._open if c.is_streaming]:
            connection.cut()

    def close_unasked(self) -> None:
        """Closes whatever is not being answered."""
        for connection in [c for c in self._open if not c.is_asked]:
            connection.close()

    def watch(self) -> None:
        """Closes what is slow, now and from now on."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in [*self._open]:
            if connection.is_late(now - self._request_seconds, now - self._stall_seconds):
                connection.cut()
            elif connection.is_idle(now - IDLE_SECONDS):
                connection.close()
        loop.call_later(min(LOOK_EVERY, self._request_seconds / 2, self._stall_seconds / 2), self.watch)


class Connection(asyncio.Protocol):
    def __init__(self, answer: Answer, connections: Connections, *, is_on_socket: bool = False) -> None:
        self._answer = answer
        self._all = connections
        self._is_on_socket = is_on_socket
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._arriving: Request | None = None
        """The request whose body is still to come."""
        self._waiting: deque[Request] = deque()
        """Sent by a peer that did not wait for the answers before."""
        self._current: Request | None = None
        self._writable: asyncio.Future[None] | None = None
        self._unsent: list[Callable[[], None]] = []
        self._out: list[bytes] = []
        self._head_size: int | None = None
        self._late_since: float | None = None
        """Since when a request has been arriving."""
        self._stalled_since: float | None = None
        self._is_paused = False
        self._is_cut = False
        self._last_word: bytes | None = None
        """Said when what is being answered has been, and then the connection ends."""
        self._quiet_since = 0.0

    # -- for those who watch -------------------------------------------------------------------------------------

    @property
    def is_streaming(self) -> bool:
        """Whether an answer without an end is under way."""
        return self._current is not None and self._current.is_streaming

    @property
    def is_asked(self) -> bool:
        return self._current is not None

    def is_idle(self, since: float) -> bool:
        """Kept open, and quiet since then."""
        return self._current is None and self._late_since is None and self._quiet_since < since

    def is_late(self, arriving_since: float, stalled_since: float) -> bool:
        return (self._late_since is not None and self._late_since < arriving_since) or (
            self._stalled_since is not None and self._stalled_since < stalled_since and self.is_streaming
        )

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def cut(self) -> None:
        self._is_cut = True
        self._transport.abort()

    # -- the transport's words -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one in all but its bases.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self._late_since = self._quiet_since = self._loop.time()
        if not self._all.has_room():
            transport.abort()
        self._all.opened(self)

    def eof_received(self) -> None:
        """The peer says no more, which is taken for a farewell: the transport closes, and takes nothing more."""
        self._has_gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.closed(self)
        self._has_gone()
        unsent, self._unsent = self._unsent, []
        self.resume_writing()
        if exc is not None or self._is_cut:
            for callback in unsent:
                callback()

    def _has_gone(self) -> None:
        for request in (self._arriving, self._current, *self._waiting):
            if request is not None:
                request.has_gone()
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        if self._late_since is None:
            # Set by the first byte and not by the parser, which skips empty lines without a word.
            self._late_since = self._loop.time()
        if self._head_size is not None:
            # Only what comes in several pieces is counted: the first piece cannot be larger than a read.
            self._head_size += len(data)
            if self._head_size > HEAD_MAX:
                self._take_no_more(NOT_HTTP)
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing else is spoken here: what was asked is answered, and the connection then ends, since what comes
            # next may be of another protocol.
            last = self._waiting[-1] if self._waiting else self._current
            if last is not None:
                last.keeps_alive = False
            self._take_no_more(b"")
        except httptools.HttpParserError:
            self._take_no_more(NOT_HTTP)

    def pause_writing(self) -> None:
        self._stalled_since = self._loop.time()
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        self._stalled_since = None
        self._look_after()
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None

    # -- the parser's words --------------------------------------------------------------------------------------

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
        request = Request(self, parser.get_method().decode(), target_of(self._url), self._headers)
        request.is_on_socket = self._is_on_socket
        if parser.get_http_version() != "1.1":
            request.keeps_alive = request.knows_chunks = False
        else:
            request.keeps_alive = parser.should_keep_alive()
            for name, value in self._headers:
                if name == b"expect" and value.lower() == b"100-continue":
                    request.expects_word = True
        self._arriving = request
        if self._current is None:
            self._begin(request)
        else:
            self._waiting.append(request)
            self._pause()

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None:
            self._arriving.add(body)
            if self._arriving.unread > AHEAD_MAX:
                self._pause()

    def on_message_complete(self) -> None:
        self._late_since = None
        if self._arriving is not None:
            self._arriving.has_arrived()
            self._arriving = None
        if self._last_word is not None and self._current is None:
            self.close()

    # -- requests, one after the other ---------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        self._current = request
        task = self._loop.create_task(self._run(request))
        self._all.answering.add(task)
        task.add_done_callback(self._all.answering.discard)

    async def _run(self, request: Request) -> None:
        try:
            await self._answer(request)
        finally:
            request.drop()

    @property
    def says_goodbye(self) -> bool:
        return self._all.says_goodbye

    def write(self, data: bytes) -> None:
        if not self._out:
            self._all.flush_soon(self)
        self._out.append(data)

    def flush(self) -> None:
        if not self._out:
            return
        parts, self._out = self._out, []
        # The peer may have gone in the turn between; uvloop would complain of what nobody is there to read.
        if self._transport.is_closing():
            self._is_cut = True
        else:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._unsent:
            self._loop.call_soon(self._look_after)

    async def until_writable(self) -> None:
        if self._writable is not None:
            await self._writable

    def wants_body(self) -> None:
        self._resume()

    def answered(self, request: Request) -> None:
        self._current = None
        self._quiet_since = self._loop.time()
        if not request.keeps_alive:
            self._waiting.clear()
            if request.expects_word:
                # It was not told to send its body, and does not.
                self._arriving = None
            self._take_no_more(b"")
        elif self._waiting:
            self._begin(self._waiting.popleft())
        elif self._last_word is not None:
            self._take_no_more(self._last_word)
        else:
            self._resume()

    def _take_no_more(self, last_word: bytes) -> None:
        """Ends the connection, after the answers to what was asked before."""
        self._last_word = last_word
        if self._current is not None:
            self._pause()
            return
        self.write(last_word)
        if self._arriving is None or last_word:
            self.close()
        else:
            # Closed while its peer still sends, it would be reset, and the peer might never read its answer: the rest
            # is let go by, for as long as a request may take to arrive.
            self._resume()

    # -- what surely reached nobody ------------------------------------------------------------------------------

    def watch_over(self, unsent: Callable[[], None]) -> None:
        self._unsent.append(unsent)
        # So that the last byte's leaving is told of.
        self._transport.set_write_buffer_limits(high=0)

    def _look_after(self) -> None:
        # (Nothing is left either of what a transport has given up, which it tells of a turn later.)
        has_left = not self._out and not self._transport.get_write_buffer_size()
        if self._unsent and has_left and not self._transport.is_closing():
            self._unsent.clear()
            self._transport.set_write_buffer_limits()

    # -- reading no faster than is answered ----------------------------------------------------------------------

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()


def target_of(url: bytes) -> tuple[str, bytes]:
    """The path, with nothing escaped in it, and the query as it was sent."""
    if not url.startswith(b"/"):
        parsed = httptools.parse_url(url)
        url = (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
    path, _, query = url.partition(b"#")[0].partition(b"?")
    text = path.decode("ascii")
    return (unquote(text) if "%" in text else text), query


def _not_http() -> bytes:
    """What a peer is told whose bytes are not HTTP: it never becomes a request, but hears of it in the usual form."""
    problem = Invalid("invalid_http", "This is not a well-formed HTTP/1.1 request; the connection is closed.")
    content = problem_json.body(problem, "")
    head = [b"HTTP/1.1 400 Bad Request", b"content-length: %d" % len(content), b"connection: close"]
    head += [name + b": " + value for name, value in problem_json.headers(problem)]
    return b"\r\n".join([*head, b"", content])


NOT_HTTP = _not_http()
