"""Streams: how they are sent, how many may be open, and what ends them.

When a handler returns a `Stream`, this module sends the chunks of the stream, no faster than the client reads. A stream
ends when the client disconnects, when its credential is no longer valid (checked periodically), when the server
drains, or when the stream has no more chunks. By then the status 200 has been sent, so a stream never ends with an
error response: the client reconnects, and continues or gets the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.http.request import Request
from quarterdeck.store.interface import TransientError

log = logging.getLogger("quarterdeck.http")
CredentialCheck = Callable[[], Awaitable[object]]
"""Raises the problem that a new request with the same credential would get."""
DRAINING = "draining"
EVENT_STREAM = "text/event-stream"
OK = 200
_Q_ZERO = re.compile(rb"q *= *0(\.0*)?")


class StreamSettings(msgspec.Struct, frozen=True):
    streams_max: Annotated[int, Meta(ge=1, le=100_000, description="maximum number of open event streams")] = 1_000
    stream_keep_alive_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="interval of keep-alive comments on a stream without events")
    ] = 15_000
    stream_recheck_ms: Annotated[
        int, Meta(ge=10, le=3_600_000, description="interval at which a stream's credential is checked again")
    ] = 60_000
    stream_stall_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="time after which a stream is closed if its client reads nothing")
    ] = 120_000
    stream_poll_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="interval at which the event log is read if no wake-up comes")
    ] = 1_000


def accepts_stream(accept: bytes) -> bool:
    """Whether an Accept header names `text/event-stream`. `*/*` does not count: such a client gets a list."""
    for part in accept.lower().split(b","):
        media, *parameters = (word.strip() for word in part.split(b";"))
        if media == EVENT_STREAM.encode():
            return not any(_Q_ZERO.fullmatch(parameter) for parameter in parameters)
    return False


class Stream:
    """A response of unknown length that a handler returns."""

    content_type = "application/octet-stream"
    headers: Sequence[tuple[bytes, bytes]] = ()

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the chunks to send, as they become available."""
        raise NotImplementedError

    async def recheck(self) -> None:
        """Called periodically. Raises a Problem if the caller may no longer read the stream."""

    def close(self, reason: str) -> None:
        """Make `chunks` end soon. May be called at any time, and more than once."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the stream's resources. Called once, at the end."""
        raise NotImplementedError


class OpenStreams:
    """All open streams of a process."""

    def __init__(self, settings: StreamSettings) -> None:
        self._max_streams = settings.streams_max
        self._recheck_seconds = settings.stream_recheck_ms / 1000
        self._open: set[Stream] = set()
        self._is_draining = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, stream: Stream) -> None:
        """Count a stream against the limit before it uses any resources. The caller must `remove` it."""
        if self._is_draining:
            raise Unavailable(DRAINING, "The server is shutting down.", retry_after=1)
        if len(self._open) >= self._max_streams:
            raise Unavailable(
                "too_many_streams",
                f"This server already has {self._max_streams} open streams. Try again.",
                retry_after=5,
            )
        self._open.add(stream)

    def remove(self, stream: Stream) -> None:
        if stream in self._open:
            self._open.discard(stream)
            stream.release()

    def drain(self) -> None:
        """End all streams and refuse new ones."""
        self._is_draining = True
        for stream in self._open:
            stream.close(DRAINING)

    async def serve(self, stream: Stream, request_id: str, request: Request, check_credential: CredentialCheck) -> int:
        """Send the head and all chunks of a stream. Return the status for the log."""
        watch_task = asyncio.create_task(self._watch(stream, request, check_credential))
        common_headers = [(b"content-type", stream.content_type.encode()), (b"x-request-id", request_id.encode())]
        try:
            request.start_stream(OK, [*common_headers, *stream.headers])
            # The response to HEAD has no body.
            if request.method != "HEAD":
                await _send_all(stream, request)
            request.end_stream()
        except asyncio.CancelledError:
            # The server is stopping, and the client has not read everything that was sent.
            log.warning("closed a stream whose client is not reading")
        except Exception:
            # A bug ends this stream only. The connection is aborted instead of completed, so the client reconnects.
            log.exception("internal error in a stream")
        finally:
            watch_task.cancel()
            self.remove(stream)
        return OK

    async def _watch(self, stream: Stream, request: Request, check_credential: CredentialCheck) -> None:
        """Close the stream when its client disconnects or loses access."""
        reason = "gone"
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                try:
                    async with asyncio.timeout(self._recheck_seconds):
                        await request.wait_disconnected()
                    break
                except TimeoutError:
                    if problem_code := await _access_problem_code(stream, check_credential):
                        reason = problem_code
                        break
        stream.close(reason)


async def _send_all(stream: Stream, request: Request) -> None:
    async with contextlib.aclosing(stream.chunks()) as chunks:
        async for chunk in chunks:
            if chunk:
                await request.send_chunk(chunk)


async def _access_problem_code(stream: Stream, check_credential: CredentialCheck) -> str | None:
    """Return the error code that a new request from this client would get, or None."""
    try:
        await check_credential()
        await stream.recheck()
    except (TransientError, Unavailable):
        # The check was not possible. The credential was valid at the last check, and its expiry is checked without I/O.
        return None
    except Problem as problem:
        return problem.code
    except Exception:
        # A caller that can no longer be checked must not keep reading.
        log.exception("checking the credential of a stream failed")
        return "internal_error"
    return None
