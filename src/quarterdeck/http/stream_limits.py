"""Answers without an end: how they are sent, how many there may be, and how they end.

A handler that answers with a `Stream` has told the client yes; from there on this module has the word. What the stream
gives is sent as it comes, no faster than the client reads it. It ends when the client goes away, when the credential it
was opened with is no longer good (asked again at an interval), when the server drains, and when the stream itself has
come to its end. The client of a stream knows how to go on elsewhere, so none of these needs an apology.
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
"""Raises what a client would be told that came with the same credential now."""
DRAINING = "draining"
EVENT_STREAM = "text/event-stream"
OK = 200
_Q_ZERO = re.compile(rb"q *= *0(\.0*)?")


class StreamSettings(msgspec.Struct, frozen=True):
    streams_max: Annotated[int, Meta(ge=1, le=100_000, description="open event streams at most")] = 1_000
    stream_keep_alive_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="between signs of life on a stream that is silent")
    ] = 15_000
    stream_recheck_ms: Annotated[
        int, Meta(ge=10, le=3_600_000, description="between looks at whether a stream's token is still good")
    ] = 60_000
    stream_stall_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="after which a stream whose client reads nothing is cut")
    ] = 120_000
    stream_poll_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="between looks at the log when nobody says there is news")
    ] = 1_000


def accepts_stream(accept: bytes) -> bool:
    """Whether an Accept header names event streams. A client that takes anything is better served by a list."""
    for part in accept.lower().split(b","):
        media, *parameters = (word.strip() for word in part.split(b";"))
        if media == EVENT_STREAM.encode():
            return not any(_Q_ZERO.fullmatch(parameter) for parameter in parameters)
    return False


class Stream:
    """What a handler answers that has no end yet."""

    content_type = "application/octet-stream"
    headers: Sequence[tuple[bytes, bytes]] = ()

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """What to send, as it comes about."""
        raise NotImplementedError

    async def recheck(self) -> None:
        """Asked now and then. Raises a Problem once whoever listens may do so no longer."""

    def close(self, reason: str) -> None:
        """Has the chunks come to an end soon. May be called at any time, and more than once."""
        raise NotImplementedError

    def release(self) -> None:
        """Called once, at the very end."""
        raise NotImplementedError


class OpenStreams:
    """Every open stream of a process."""

    def __init__(self, settings: StreamSettings) -> None:
        self._max_streams = settings.streams_max
        self._recheck_seconds = settings.stream_recheck_ms / 1000
        self._open: set[Stream] = set()
        self._is_draining = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, stream: Stream) -> None:
        """Takes a place, before the stream has cost anything. Whoever enters must leave."""
        if self._is_draining:
            raise Unavailable(DRAINING, "The server is shutting down.", retry_after=1)
        if len(self._open) >= self._max_streams:
            raise Unavailable(
                "too_many_streams", f"All {self._max_streams} streams of this server are taken.", retry_after=5
            )
        self._open.add(stream)

    def remove(self, stream: Stream) -> None:
        if stream in self._open:
            self._open.discard(stream)
            stream.release()

    def drain(self) -> None:
        """Ends every stream, and lets nobody in any more."""
        self._is_draining = True
        for stream in self._open:
            stream.close(DRAINING)

    async def serve(self, stream: Stream, request_id: str, request: Request, check_credential: CredentialCheck) -> int:
        """Sends a stream, from its head to its end."""
        watch_task = asyncio.create_task(self._watch(stream, request, check_credential))
        common_headers = [(b"content-type", stream.content_type.encode()), (b"x-request-id", request_id.encode())]
        try:
            request.start_stream(OK, [*common_headers, *stream.headers])
            # Who asks for the head alone has all of it.
            if request.method != "HEAD":
                await _send_all(stream, request)
            request.end_stream()
        except asyncio.CancelledError:
            # The grace is over, and its reader has not read what there was to read.
            log.warning("a stream whose client does not read was cut off")
        except Exception:
            # A defect ends its own stream and no other. It is cut, not finished: the client comes again.
            log.exception("a defect in a stream")
        finally:
            watch_task.cancel()
            self.remove(stream)
        return OK

    async def _watch(self, stream: Stream, request: Request, check_credential: CredentialCheck) -> None:
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
    """The code by which a client would be refused that came now."""
    try:
        await check_credential()
        await stream.recheck()
    except (TransientError, Unavailable):
        # Nobody can say just now. It was good when it was last asked about, and an expiry needs nobody to be asked.
        return None
    except Problem as problem:
        return problem.code
    except Exception:
        # Whatever it is: who cannot be judged any more may not go on listening.
        log.exception("the credential of a stream could not be judged")
        return "internal_error"
    return None
