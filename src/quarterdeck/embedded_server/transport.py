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
from quarterdeck.client.discovery import ServerLocation
from quarterdeck.client.http_types import Lost, Response, TimedOut, Unreachable
from quarterdeck.client.problems import problem_from_response
from quarterdeck.http.connection import parse_target
from quarterdeck.http.dispatcher import Dispatcher
from quarterdeck.http.request import Headers, Request
from quarterdeck.sdk.transport import ApiCall, Options, Transport, build_base_headers, build_call_headers

STREAM_BUFFER_SIZE = 64
"""Pieces of a stream that may wait for their reader; beyond them the server waits, too."""
END_OF_STREAM = b""


class _NoConnection:
    """The connection of a request that has none."""

    is_draining = False

    def write(self, data: bytes) -> None:
        raise AssertionError("an answer that stays in the process is not written")

    def flush(self) -> None: ...

    def track_delivery(self, on_undelivered: Callable[[], None]) -> None: ...

    async def wait_writable(self) -> None: ...

    def read_more(self) -> None: ...

    def finish_request(self, request: Request) -> None: ...

    def abort(self) -> None: ...


class InProcessRequest(Request):
    """One call, as the shell sees it."""

    __slots__ = ("_on_unsent", "chunks", "response_future")

    def __init__(self, call: ApiCall, headers: Mapping[str, str], body: bytes | None) -> None:
        target = parse_target(with_query(call.path, call.query).encode())
        encoded_headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        super().__init__(_NoConnection(), call.method, target, encoded_headers)
        if body is not None:
            self.headers.append((b"content-length", str(len(body)).encode()))
            self.feed_body(body)
        self.mark_complete()
        self.response_future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        """The whole answer, or the beginning of one without an end."""
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue(STREAM_BUFFER_SIZE)
        self._on_unsent: Callable[[], None] | None = None

    def respond(
        self, status: int, headers: Headers, content: bytes, on_undelivered: Callable[[], None] | None = None
    ) -> None:
        if self.is_disconnected or self.response_future.done():
            if on_undelivered:
                on_undelivered()
            return
        self._on_unsent = on_undelivered
        self.response_future.set_result(Response(status, _decode_headers(headers), content))

    def start_stream(self, status: int, headers: Headers) -> None:
        self.is_streaming = True
        if not self.response_future.done():
            self.response_future.set_result(Response(status, _decode_headers(headers), b""))

    async def send_chunk(self, chunk: bytes) -> None:
        if not self.is_disconnected:
            await self.chunks.put(chunk)

    def end_stream(self) -> None:
        self.is_streaming = False
        if not self.is_disconnected and not self.chunks.full():
            self.chunks.put_nowait(END_OF_STREAM)  # if it is full its reader is awake, and looks for the end by itself

    def abort_if_unanswered(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Nobody waits for it any more; what was answered in that very moment reached nobody."""
        if self.is_disconnected:
            return
        self.mark_disconnected()
        # Whoever sends waits for room, and finds that nobody is there.
        while not self.chunks.empty():
            self.chunks.get_nowait()
        unsent, self._on_unsent = self._on_unsent, None
        if unsent is not None:
            unsent()


class InProcessTransport(Transport):
    """What the SDK calls, where the server is this program."""

    def __init__(self, dispatcher: Dispatcher, mint_token: Callable[[], str], options: Options) -> None:
        super().__init__(ServerLocation(None, None, None, options.timeout), options)
        self._dispatcher = dispatcher
        self._mint_token = mint_token
        self._base_headers = build_base_headers(mint_token(), None)
        self._pending: dict[asyncio.Task[None], InProcessRequest] = {}

    async def rediscover(self) -> bool:
        """There is no other place; but a token that has expired is followed by another."""
        previous, self._base_headers = self._base_headers, build_base_headers(self._mint_token(), None)
        return self._base_headers != previous

    async def _send_once(self, call: ApiCall, body: bytes | None) -> Response:
        request = self._start_request(call, {**self._base_headers, **build_call_headers(call, body)}, body)
        response = await self._wait_for_response(request, self.options.timeout + call.wait_seconds)
        if response.status >= 300:
            raise problem_from_response(response)
        return response

    @contextlib.asynccontextmanager
    async def stream(self, call: ApiCall, last_event_id: str | None) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        headers = {**self._base_headers, **build_call_headers(call, None), "Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        request = self._start_request(call, headers, None)
        try:
            response = await self._wait_for_response(request, self.options.timeout)
            if response.status >= 300:
                raise problem_from_response(response)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise Lost("garbled_answer", "The answer is no stream.")
            async with contextlib.aclosing(_iter_chunks(request)) as chunks:
                yield chunks
        finally:
            request.abandon()

    async def close(self) -> None:
        await super().close()
        for request in [*self._pending.values()]:
            request.abandon()
        await asyncio.gather(*self._pending, return_exceptions=True)

    def _start_request(self, call: ApiCall, headers: Mapping[str, str], body: bytes | None) -> InProcessRequest:
        self._require_open()
        if self._dispatcher.is_draining:
            raise Unreachable("server_unreachable", "The server inside this program has stopped.")
        request = InProcessRequest(call, headers, body)
        task = asyncio.get_running_loop().create_task(self._dispatcher.handle(request))
        self._pending[task] = request
        task.add_done_callback(self._on_task_done)
        return request

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._pending.pop(task, None)

    @staticmethod
    async def _wait_for_response(request: InProcessRequest, seconds: float) -> Response:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(request.response_future)
        except TimeoutError:
            request.abandon()
            raise TimedOut("answer_timeout", f"No answer came within {seconds:g} s.") from None
        except asyncio.CancelledError:
            request.abandon()
            raise


async def _iter_chunks(request: InProcessRequest) -> AsyncGenerator[bytes, None]:
    while request.is_streaming or not request.chunks.empty():
        if (chunk := await request.chunks.get()) == END_OF_STREAM:
            return
        yield chunk


def _decode_headers(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
