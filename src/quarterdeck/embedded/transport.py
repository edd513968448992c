"""Calls that stay in the process: from the SDK to the shell, and back.

A call becomes the request that a connection would have made of it, and is answered by the same shell: nothing is
decided differently, and nothing is written to a socket or parsed from one. Whoever gives up waiting is, to the server,
a client that has gone: a lease it would have been given goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

from quarterdeck.client.api import with_query
from quarterdeck.client.discovery import Where
from quarterdeck.client.http_types import Answer, Lost, TimedOut, Unreachable
from quarterdeck.client.problems import from_answer
from quarterdeck.http.connection import target_of
from quarterdeck.http.dispatcher import Shell
from quarterdeck.http.request import Headers, Request
from quarterdeck.sdk.transport import Ask, Options, Remote, headers_of, headers_with

STREAM_AHEAD = 64
"""Pieces of a stream that may wait for their reader; beyond them the server waits, too."""
END = b""


class _Nowhere:
    """The connection of a request that has none."""

    says_goodbye = False

    def write(self, data: bytes) -> None:
        raise AssertionError("an answer that stays in the process is not written")

    def flush(self) -> None: ...

    def watch_over(self, unsent: Callable[[], None]) -> None: ...

    async def until_writable(self) -> None: ...

    def wants_body(self) -> None: ...

    def answered(self, request: Request) -> None: ...

    def cut(self) -> None: ...


class Inner(Request):
    """One call, as the shell sees it."""

    __slots__ = ("_unsent", "head", "pieces")

    def __init__(self, ask: Ask, headers: Mapping[str, str], body: bytes | None) -> None:
        target = target_of(with_query(ask.path, ask.query).encode())
        spelt = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        super().__init__(_Nowhere(), ask.method, target, spelt)
        if body is not None:
            self.headers.append((b"content-length", str(len(body)).encode()))
            self.add(body)
        self.has_arrived()
        self.head: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        """The whole answer, or the beginning of one without an end."""
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue(STREAM_AHEAD)
        self._unsent: Callable[[], None] | None = None

    def answer(self, status: int, headers: Headers, content: bytes, unsent: Callable[[], None] | None = None) -> None:
        if self.is_gone or self.head.done():
            if unsent:
                unsent()
            return
        self._unsent = unsent
        self.head.set_result(Answer(status, _read(headers), content))

    def begin(self, status: int, headers: Headers) -> None:
        self.is_streaming = True
        if not self.head.done():
            self.head.set_result(Answer(status, _read(headers), b""))

    async def send(self, chunk: bytes) -> None:
        if not self.is_gone:
            await self.pieces.put(chunk)

    def end(self) -> None:
        self.is_streaming = False
        if not self.is_gone and not self.pieces.full():
            self.pieces.put_nowait(END)  # if it is full its reader is awake, and looks for the end by itself

    def drop(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Nobody waits for it any more; what was answered in that very moment reached nobody."""
        if self.is_gone:
            return
        self.has_gone()
        # Whoever sends waits for room, and finds that nobody is there.
        while not self.pieces.empty():
            self.pieces.get_nowait()
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            unsent()


class Inward(Remote):
    """What the SDK calls, where the server is this program."""

    def __init__(self, shell: Shell, tokens: Callable[[], str], options: Options) -> None:
        super().__init__(Where(None, None, None, options.timeout), options)
        self._shell = shell
        self._mint = tokens
        self._bears = headers_with(tokens(), None)
        self._answering: dict[asyncio.Task[None], Inner] = {}

    async def look_again(self) -> bool:
        """There is no other place; but a token that has expired is followed by another."""
        before, self._bears = self._bears, headers_with(self._mint(), None)
        return self._bears != before

    async def _try(self, ask: Ask, body: bytes | None) -> Answer:
        request = self._begin(ask, {**self._bears, **headers_of(ask, body)}, body)
        answer = await self._answered(request, self.options.timeout + ask.waits)
        if answer.status >= 300:
            raise from_answer(answer)
        return answer

    @contextlib.asynccontextmanager
    async def stream(self, ask: Ask, last: str | None) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        headers = {**self._bears, **headers_of(ask, None), "Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = last
        request = self._begin(ask, headers, None)
        try:
            answer = await self._answered(request, self.options.timeout)
            if answer.status >= 300:
                raise from_answer(answer)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise Lost("garbled_answer", "The answer is no stream.")
            async with contextlib.aclosing(_pieces(request)) as pieces:
                yield pieces
        finally:
            request.leave()

    async def close(self) -> None:
        await super().close()
        for request in [*self._answering.values()]:
            request.leave()
        await asyncio.gather(*self._answering, return_exceptions=True)

    def _begin(self, ask: Ask, headers: Mapping[str, str], body: bytes | None) -> Inner:
        self._require_open()
        if self._shell.draining:
            raise Unreachable("server_unreachable", "The server inside this program has stopped.")
        request = Inner(ask, headers, body)
        task = asyncio.get_running_loop().create_task(self._shell.answer(request))
        self._answering[task] = request
        task.add_done_callback(self._answered_for)
        return request

    def _answered_for(self, task: asyncio.Task[None]) -> None:
        self._answering.pop(task, None)

    @staticmethod
    async def _answered(request: Inner, seconds: float) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(request.head)
        except TimeoutError:
            request.leave()
            raise TimedOut("answer_timeout", f"No answer came within {seconds:g} s.") from None
        except asyncio.CancelledError:
            request.leave()
            raise


async def _pieces(request: Inner) -> AsyncGenerator[bytes, None]:
    while request.is_streaming or not request.pieces.empty():
        if (piece := await request.pieces.get()) == END:
            return
        yield piece


def _read(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
