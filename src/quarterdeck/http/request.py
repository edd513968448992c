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
STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}


class Gone(Exception):
    """The client went away before it had said what it wanted."""


class TooMuch(Exception):
    """The body is larger than whoever reads it would have."""


class Way(Protocol):
    """What of a connection a request needs."""

    @property
    def says_goodbye(self) -> bool:
        """Whether this answer is to be the last one of its connection."""

    def write(self, data: bytes) -> None: ...
    def flush(self) -> None: ...
    def watch_over(self, unsent: Callable[[], None]) -> None: ...
    async def until_writable(self) -> None: ...
    def wants_body(self) -> None: ...
    def answered(self, request: Request) -> None: ...
    def cut(self) -> None: ...


class Request:
    __slots__ = (
        "_answered",
        "_arrived",
        "_body",
        "_farewell",
        "_hears_farewell",
        "_is_head",
        "_reads",
        "_size",
        "_way",
        "expects_word",
        "headers",
        "is_gone",
        "is_on_socket",
        "is_streaming",
        "is_whole",
        "keeps_alive",
        "knows_chunks",
        "method",
        "path",
        "query",
    )

    def __init__(self, way: Way, method: str, target: tuple[str, bytes], headers: list[tuple[bytes, bytes]]) -> None:
        self.method = method
        self.path, self.query = target
        self.headers = headers
        self.keeps_alive = True
        """The connection is good for another request after this one."""
        self.knows_chunks = True
        self.expects_word = False
        """The client sends its body only when it is told to."""
        self.is_whole = False
        """All of it has arrived."""
        self.is_gone = False
        self.is_on_socket = False
        """It came over the unix socket: the listener says so, and nothing that a client could send."""
        self.is_streaming = False
        self._way = way
        self._is_head = method == "HEAD"
        self._body: list[bytes] = []
        self._size = 0
        self._reads = True
        self._answered = False
        self._arrived: asyncio.Future[None] | None = None
        self._farewell: asyncio.Future[None] | None = None
        self._hears_farewell: Callable[[], object] | None = None

    # -- what comes in -------------------------------------------------------------------------------------------

    async def body(self, most: int) -> bytes:
        """The whole of it, or `TooMuch` as soon as that is known."""
        if self.expects_word and not self.is_whole:
            self._way.write(CONTINUE)
            self.expects_word = False
        while not self.is_whole and not self.is_gone and self._size <= most:
            self._arrived = asyncio.get_running_loop().create_future()
            self._way.wants_body()
            await self._arrived
        if self._size > most:
            raise TooMuch
        if not self.is_whole:
            raise Gone
        return self._body[0] if len(self._body) == 1 else b"".join(self._body)

    async def until_gone(self) -> None:
        if not self.is_gone:
            self._farewell = asyncio.get_running_loop().create_future()
            await self._farewell

    def on_farewell(self, callback: Callable[[], object] | None) -> None:
        """Has somebody told as soon as the client is gone; at once, if it is."""
        self._hears_farewell = callback
        if self.is_gone and callback is not None:
            callback()

    # -- told by the connection ----------------------------------------------------------------------------------

    @property
    def unread(self) -> int:
        return self._size

    def add(self, data: bytes) -> None:
        if self._reads:
            self._body.append(data)
            self._size += len(data)
            _wake(self._arrived)

    def has_arrived(self) -> None:
        self.is_whole = True
        _wake(self._arrived)

    def has_gone(self) -> None:
        self.is_gone = True
        _wake(self._arrived)
        _wake(self._farewell)
        hears, self._hears_farewell = self._hears_farewell, None
        if hears is not None:
            hears()

    # -- what goes out -------------------------------------------------------------------------------------------

    def answer(self, status: int, headers: Headers, content: bytes, unsent: Callable[[], None] | None = None) -> None:
        """All of it, with one system call."""
        if self.is_gone:
            if unsent:
                unsent()
            return
        parts = [STATUS_LINES[status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        if status != NO_CONTENT:
            parts.append(b"content-length: %d\r\n" % len(content))
        parts.append(b"connection: close\r\n\r\n" if self._ends_here() else b"\r\n")
        if not self._is_head:
            parts.append(content)
        if unsent:
            self._way.watch_over(unsent)
        self._way.write(b"".join(parts))
        self._is_over()

    def begin(self, status: int, headers: Headers) -> None:
        """The head of an answer whose length nobody knows. To HTTP/1.0, which knows no chunks, the connection's end is
        the answer's."""
        parts = [STATUS_LINES[status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        self.is_streaming = True
        parts.append(b"transfer-encoding: chunked\r\n" if self.knows_chunks else b"")
        parts.append(b"connection: close\r\n\r\n" if self._ends_here() else b"\r\n")
        if not self.is_gone:
            self._way.write(b"".join(parts))

    async def send(self, chunk: bytes) -> None:
        """No faster than the client reads."""
        if not self.is_gone and not self._is_head:
            self._way.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self.knows_chunks else chunk)
            self._way.flush()
            await self._way.until_writable()

    def end(self) -> None:
        self.is_streaming = False
        if not self.is_gone:
            if self.knows_chunks and not self._is_head:
                self._way.write(LAST_CHUNK)
            self._is_over()

    def drop(self) -> None:
        """Cuts the connection if there was no whole answer: whoever waits for the rest is told by its end."""
        if not self._answered and not self.is_gone:
            self._way.cut()

    def _ends_here(self) -> bool:
        # A client that was to be told whether to send its body, and is told this instead, may send it or not: where the
        # next request would begin, nobody knows.
        unclear = self.expects_word and not self.is_whole
        self.keeps_alive = self.keeps_alive and not unclear and not self._way.says_goodbye
        return not self.keeps_alive

    def _is_over(self) -> None:
        self._answered = True
        # Whatever is still to come of its body is read and let go: closed now, the connection would be reset, and the
        # client might never see its answer.
        self._reads = False
        self._body.clear()
        self._size = 0
        self._way.answered(self)


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


async def while_there(answering: Awaitable[object], request: Request) -> object:
    task = asyncio.current_task()
    assert task is not None
    request.on_farewell(task.cancel)
    try:
        return await answering
    except asyncio.CancelledError:
        if not request.is_gone:
            raise
        task.uncancel()
        raise Gone from None
    finally:
        request.on_farewell(None)
