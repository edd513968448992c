"""The event log of a zone, as a list or as a stream.

A stream that ends, breaks or is silent for 90 s is reopened after a pause. It continues after the last event id, so no
event is missed or repeated. A refusal is raised. A fault is raised if the first connection cannot be opened within
`Options.patience`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

import msgspec

from quarterdeck.client.api import Query
from quarterdeck.client.event_stream import RETRY_MAX_MS, SseMessage, SseParser
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.sdk import transport
from quarterdeck.sdk.errors import Fault, LogReset, Problem, Unauthenticated
from quarterdeck.sdk.resource import Resource
from quarterdeck.sdk.transport import ApiCall, Transport
from quarterdeck.sdk.types import Event, EventPage

log = logging.getLogger("quarterdeck.sdk")
PAGE_SIZE = 500
_decoder = msgspec.json.Decoder(Event)


class Events(Resource):
    async def list(
        self, *, after: int = 0, types: Sequence[str] = (), subject: str | None = None
    ) -> AsyncIterator[Event]:
        """Iterate over the events after a position up to the current end of the log, oldest first."""
        position: int | None = after
        while position is not None:
            query = {**_build_filters(types, subject), "after": position, "limit": PAGE_SIZE}
            page = await self._call(ApiCall("GET", self._path("events"), query), EventPage)
            for event in page.items:
                yield event
            position = page.next_after

    async def follow(
        self, *, after: int | None = None, types: Sequence[str] = (), subject: str | None = None
    ) -> AsyncIterator[Event]:
        """Iterate over events as they happen, endlessly. Starts after the position `after`, or with the next event.

        Reconnects when a connection is lost, and misses no event. Raises `LogReset` if events that follow the
        position have been deleted from the log.
        """
        stream = AsyncEventStream(
            self._transport, self._path("events"), {**_build_filters(types, subject), "after": after}
        )
        async with contextlib.aclosing(stream.messages()) as messages:
            async for message in messages:
                if message.event == "reset":
                    raise LogReset(int(message.id))
                yield _decoder.decode(message.data)


def _build_filters(types: Sequence[str], subject: str | None) -> dict[str, str | int | bool | None]:
    return {"types": ",".join(types) or None, "subject": subject}


class AsyncEventStream:
    """One logical event stream, read over one or more connections."""

    def __init__(
        self, transport: Transport, path: str, query: Query, on_connection_change: Callable[[bool], None] | None = None
    ) -> None:
        self._transport = transport
        self._call = ApiCall("GET", path, query)
        self._on_connection_change = on_connection_change
        """Called with True when a connection opens, after which all events arrive, and with False when it is lost."""
        self._parser = SseParser()
        self._failures = 0
        self._has_connected = False
        self._started_at = 0.0

    async def messages(self) -> AsyncGenerator[SseMessage, None]:
        self._started_at = asyncio.get_running_loop().time()
        while True:
            try:
                async with contextlib.aclosing(self._read_connection()) as messages:
                    async for message in messages:
                        yield message
                log.debug("the stream %s ended", self._call.path)
            except Problem as problem:
                await self._raise_if_permanent(problem)
            self._failures += 1
            await self._pause()

    async def _read_connection(self) -> AsyncGenerator[SseMessage, None]:
        self._parser.reset()
        async with self._transport.stream(self._call, self._parser.last_event_id) as chunks:
            self._has_connected = True
            self._report_connection(True)
            try:
                async for chunk in chunks:
                    for message in self._parser.feed(chunk):
                        self._failures = 0
                        if message is not None:
                            yield message
            finally:
                self._report_connection(False)

    def _report_connection(self, is_connected: bool) -> None:
        if self._on_connection_change is not None:
            self._on_connection_change(is_connected)

    async def _raise_if_permanent(self, problem: Problem) -> None:
        """Raise the problem unless it may be temporary."""
        log.debug("the stream %s was lost: %s", self._call.path, problem.detail)
        has_changed = await self._transport.rediscover()
        if isinstance(problem, Unauthenticated) and has_changed:
            return
        if not isinstance(problem, Fault):
            raise problem
        elapsed_seconds = asyncio.get_running_loop().time() - self._started_at
        if not self._has_connected and (
            not _is_retryable(problem) or elapsed_seconds > self._transport.options.patience
        ):
            raise problem

    async def _pause(self) -> None:
        retry_ms = self._parser.retry_ms
        policy = Policy(max_attempts=0, base_ms=retry_ms, cap_ms=max(retry_ms, RETRY_MAX_MS))
        await asyncio.sleep(backoff(policy, attempt=self._failures, jitter=random.random()) / 1000)


def _is_retryable(problem: Problem) -> bool:
    return transport.is_transient(problem) or transport.is_outcome_unknown(problem)
