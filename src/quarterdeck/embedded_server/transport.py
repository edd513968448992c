"""SDK transport that calls the server's dispatcher in the same process, without a socket.

A call becomes the same `Request` that a connection would create, and the same dispatcher handles it, so every decision
is the same as over HTTP. The server treats a caller that stops waiting like a client that disconnected: it releases an
attempt that the response would have delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

from quarterdeck.client.api import with_query
from quarterdeck.client.discovery import ServerLocation
from quarterdeck.client.http_types import Response, TimedOut, Unreachable
from quarterdeck.client.problems import problem_from_response, require_event_stream
from quarterdeck.http.connection import parse_target
from quarterdeck.http.dispatcher import Dispatcher
from quarterdeck.http.request import Headers, Request
from quarterdeck.sdk.transport import ApiCall, Options, Transport, build_base_headers, build_call_headers

STREAM_BUFFER_SIZE = 64
"""Maximum chunks of a stream that are buffered for the reader. When the buffer is full, the server waits."""
END_OF_STREAM = b""


class _NoConnection:
    """A connection that does nothing, for requests without a socket."""

    is_draining = False

    def write(self, data: bytes) -> None:
        raise AssertionError("an in-process response is not written to a connection")

    def flush(self) -> None: ...

    def track_delivery(self, on_undelivered: Callable[[], None]) -> None: ...

    async def wait_writable(self) -> None: ...

    def read_more(self) -> None: ...

    def finish_request(self, request: Request) -> None: ...

    def abort(self) -> None: ...


class InProcessRequest(Request):
    """One SDK call, as a request for the dispatcher."""

    __slots__ = ("_on_undelivered", "chunks", "response_future")

    def __init__(self, call: ApiCall, headers: Mapping[str, str], body: bytes | None) -> None:
        target = parse_target(with_query(call.path, call.query).encode())
        encoded_headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        super().__init__(_NoConnection(), call.method, target, encoded_headers)
        if body is not None:
            self.headers.append((b"content-length", str(len(body)).encode()))
            self.feed_body(body)
        self.mark_complete()
        self.response_future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        """The complete response, or the head of a stream."""
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue(STREAM_BUFFER_SIZE)
        self._on_undelivered: Callable[[], None] | None = None

    def respond(
        self, status: int, headers: Headers, content: bytes, on_undelivered: Callable[[], None] | None = None
    ) -> None:
        if self.is_disconnected or self.response_future.done():
            if on_undelivered:
                on_undelivered()
            return
        self._on_undelivered = on_undelivered
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
            # If the buffer is full, the reader is awake and checks `is_streaming` itself.
            self.chunks.put_nowait(END_OF_STREAM)

    def abort_if_unanswered(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Record that the caller is no longer waiting. A response that was already set counts as not delivered."""
        if self.is_disconnected:
            return
        self.mark_disconnected()
        # Unblock a sender that is waiting for buffer space. It then sees that the request is disconnected.
        while not self.chunks.empty():
            self.chunks.get_nowait()
        on_undelivered, self._on_undelivered = self._on_undelivered, None
        if on_undelivered is not None:
            on_undelivered()


class InProcessTransport(Transport):
    """The SDK's transport to an embedded server."""

    def __init__(self, dispatcher: Dispatcher, mint_token: Callable[[], str], options: Options) -> None:
        super().__init__(ServerLocation(None, None, None, options.timeout), options)
        self._dispatcher = dispatcher
        self._mint_token = mint_token
        self._base_headers = build_base_headers(mint_token(), None)
        self._pending: dict[asyncio.Task[None], InProcessRequest] = {}

    async def rediscover(self) -> bool:
        """Mint a new token. The address of an embedded server never changes."""
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
            require_event_stream(response)
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
            raise Unreachable("server_unreachable", "The embedded server has stopped.")
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
            raise TimedOut("answer_timeout", f"The embedded server did not answer within {seconds:g} s.") from None
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
