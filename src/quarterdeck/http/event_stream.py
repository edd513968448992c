"""A zone's events as server-sent events, in the order of their commits.

    retry: 1742                                  milliseconds before a reconnect, random per client
    id: 41                                       the position of a stream that starts at the end of the log

    id: 42                                       `pos`: the Last-Event-ID for a reconnect
    event: session.spawn                         the type
    data: {"pos":42,"id":"…","zone_id":"…",…}    the event, as in the list

    : keep-alive                                 sent after a period without events
    id: 57                                       all matching events up to here were sent: a reconnect starts here

A client that reconnects to any replica with the last id it received gets every later event once and in order. If the
log does not contain that position, because it was deleted or does not exist yet, the client gets one `reset` event and
then all stored events.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from quarterdeck.core.caller import Bearer
from quarterdeck.core.errors import Invalid
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.domain.access.operations import require_token
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import Event, EventFilter, LogBounds
from quarterdeck.engine.event_subscriber import EndEvent, EventSubscriber
from quarterdeck.engine.event_tailer import EventTailer
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.http.stream_limits import EVENT_STREAM, OpenStreams, Stream
from quarterdeck.store.interface import TransientError

SESSION_ENDED = "session.terminate"
RECONNECT_MS = (1_000, 3_000)
"""The range of the random delay before a reconnect, so that the clients of a lost server do not all reconnect at once.
"""
RETRY = Policy(max_attempts=0, base_ms=100, multiplier=2.0, cap_ms=2_000)
_POSITION = re.compile(r"[0-9]{1,19}")
_MAX_POSITION = 2**63 - 1
_encode = msgspec.json.Encoder().encode
S = TypeVar("S", bound="EventStream")


def encode_frame(event: Event) -> bytes:
    body = _encode(log.to_view(event))
    if b"\n" in body or b"\r" in body:
        # Components may write JSON with line breaks between tokens. JSON ignores them, but they would split `data`.
        body = b" ".join(body.splitlines())
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.pos, event.type.encode(), body)


def parse_position(last_event_id: str) -> int:
    if _POSITION.fullmatch(last_event_id) and int(last_event_id) <= _MAX_POSITION:
        return int(last_event_id)
    detail = "Last-Event-ID must be an id that this stream sent: a number of at most 19 digits."
    raise Invalid("invalid_last_event_id", detail, field="Last-Event-ID")


class EventStream(Stream):
    """One client's stream. Created and started by `EventStreams`."""

    content_type = EVENT_STREAM
    headers = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))

    def __init__(
        self, event_streams: EventStreams, subscriber: EventSubscriber, bearer: Bearer | None, starts_at_head: bool
    ) -> None:
        self._event_streams = event_streams
        self.subscriber = subscriber
        self._bearer = bearer
        self._starts_at_head = starts_at_head
        self._keep_alive_at = 0.0
        self._failures = 0

    async def start(self) -> None:
        """Check the caller's access. If the stream starts at the end of the log, move it there."""

        async def read_bounds(tx: Transaction) -> LogBounds:
            await self._authorize(tx)
            return await log.read_bounds(tx)

        bounds = await self._event_streams.engine.read(read_bounds, zones=self._zones)
        if self._starts_at_head:
            self.subscriber.position = bounds.head

    async def recheck(self) -> None:
        if self._bearer is not None:
            await self._event_streams.engine.read(lambda tx: require_token(tx, self._bearer), zones=self._zones)

    async def _authorize(self, tx: Transaction) -> None:
        """Refuse a token that is no longer valid, and a zone that does not exist."""
        await require_token(tx, self._bearer)
        await zones.require_zone(tx, self.subscriber.filters.zone_id)

    def close(self, reason: str) -> None:
        self.subscriber.close(reason)

    def release(self) -> None:
        self._event_streams.tailer.detach(self.subscriber)
        self.subscriber.release()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._first_chunk()
        while self.subscriber.end_reason is None:
            yield await self._next_chunk()
        yield f": over, {self.subscriber.end_reason}\n\n".encode()

    def _first_chunk(self) -> bytes:
        self._keep_alive_at = asyncio.get_running_loop().time() + self._event_streams.keep_alive_seconds
        retry = b"retry: %d\n" % random.randint(*RECONNECT_MS)
        # A client that is disconnected before its first event needs an id to reconnect with.
        return retry + (b"id: %d\n\n" % self.subscriber.position if self._starts_at_head else b"\n")

    async def _next_chunk(self) -> bytes:
        """Return the next bytes to send. Empty if the caller should call again."""
        try:
            chunk = await self._read_pending()
        except TransientError:
            # The client could only reconnect and wait, so the stream stays open and retries.
            self._failures += 1
            pause_seconds = backoff(RETRY, attempt=self._failures, jitter=random.random()) / 1000
            await self.subscriber.wait(min(asyncio.get_running_loop().time() + pause_seconds, self._keep_alive_at))
            chunk = b""
        else:
            self._failures = 0
        now = asyncio.get_running_loop().time()
        if not chunk and now >= self._keep_alive_at:
            chunk = b": keep-alive\nid: %d\n\n" % self._position
        if chunk:
            self._keep_alive_at = now + self._event_streams.keep_alive_seconds
        elif self._is_idle:
            await self.subscriber.wait(self._keep_alive_at)
        return chunk

    async def _read_pending(self) -> bytes:
        """Return the encoded events to send. Raises TransientError while the database is unavailable."""
        if self.subscriber.is_live:
            return self.subscriber.take()
        page, missed_bounds = await self.subscriber.catch_up()
        return page if missed_bounds is None else self._reset_frame(missed_bounds)

    def _reset_frame(self, missed_bounds: LogBounds) -> bytes:
        data = _encode({"floor": missed_bounds.floor, "head": missed_bounds.head})
        return b"id: %d\nevent: reset\ndata: %s\n\n" % (self.subscriber.position, data)

    @property
    def _position(self) -> int:
        """The position up to which all matching events have been sent."""
        return self.subscriber.position

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is pending until the tailer reports new events."""
        return self.subscriber.is_live

    @property
    def _zones(self) -> set[str]:
        zone_ids = {self.subscriber.filters.zone_id}
        return zone_ids | {self._bearer.zone_id} if self._bearer else zone_ids


@dataclass(frozen=True, slots=True)
class EventStreams:
    """Opens event streams. A process has one instance."""

    engine: Engine
    tailer: EventTailer
    open_streams: OpenStreams
    keep_alive_seconds: float

    async def open(self, filters: EventFilter, bearer: Bearer | None, *, starts_at_head: bool) -> EventStream:
        return await self.start(EventStream(self, self.new_subscriber(filters, bearer), bearer, starts_at_head))

    def new_subscriber(self, filters: EventFilter, bearer: Bearer | None) -> EventSubscriber:
        """Create a subscriber that closes when a session with the bearer's session id or agent id terminates."""
        subjects = (bearer.session_id, bearer.agent_id) if bearer else ()
        end_events = [EndEvent(bearer.zone_id, SESSION_ENDED, subject) for subject in subjects if bearer and subject]
        return EventSubscriber(self.tailer, self.engine, filters, end_events)

    async def start(self, stream: S) -> S:
        self.open_streams.add(stream)
        try:
            # Attach before the check: a session that ends after the check is seen by the subscriber, and one that ended
            # before it is refused by the check.
            await self.tailer.attach(stream.subscriber)
            await stream.start()
        except BaseException:  # including a cancellation: the stream will not be served, so nothing else removes it
            self.open_streams.remove(stream)
            raise
        return stream
