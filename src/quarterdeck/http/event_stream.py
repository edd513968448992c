"""A zone's events as they are committed: server-sent events.

    retry: 1742                                  how long to wait before coming again, a little different for everybody
    id: 41                                       where a stream that begins now begins

    id: 42                                       `pos`: what to say in Last-Event-ID when coming again
    event: session.spawn                         the type
    data: {"pos":42,"id":"…","zone_id":"…",…}    the event, as the list shows it

    : keep-alive                                 after a while of silence
    id: 57                                       what has passed meanwhile was not wanted here: no need to look again

Who comes again with the last id it saw is told of everything since, once and in order, on any replica. Who comes from a
position that the log no longer reaches, or has not reached, is told so by one `reset` and goes on from the floor.
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
from quarterdeck.core.retry import Policy, delay
from quarterdeck.domain.sessions.operations import require_bearer
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import Bounds, Event, EventFilter
from quarterdeck.engine.event_subscriber import Follower, Watch
from quarterdeck.engine.event_tailer import Tailer
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.http.stream_limits import EVENT_STREAM, Stream, Streams
from quarterdeck.store.interface import TransientError

ENDED = "session.terminate"
COME_AGAIN_MS = (1_000, 3_000)
"""Not the same for everybody: those whom one server lost should not reach the next in the same instant."""
RETRY = Policy(max_attempts=0, base_ms=100, multiplier=2.0, cap_ms=2_000)
_POSITION = re.compile(r"[0-9]{1,19}")
_LAST = 2**63 - 1
_encode = msgspec.json.Encoder().encode
S = TypeVar("S", bound="EventStream")


def frame(event: Event) -> bytes:
    """An event on the wire."""
    body = _encode(log.view(event))
    if b"\n" in body or b"\r" in body:
        # Rooms write their data as they like; a line break outside of JSON's strings means nothing but to us.
        body = b" ".join(body.splitlines())
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.pos, event.type.encode(), body)


def position_of(last_event_id: str) -> int:
    """The position within a Last-Event-ID."""
    if _POSITION.fullmatch(last_event_id) and int(last_event_id) <= _LAST:
        return int(last_event_id)
    raise Invalid("invalid_last_event_id", "Last-Event-ID is not a position of this log.", field="Last-Event-ID")


class EventStream(Stream):
    """One client's stream. Made by `Live`, which has checked who asks and from where."""

    content_type = EVENT_STREAM
    headers = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))

    def __init__(self, live: Live, follower: Follower, bearer: Bearer | None, begins_now: bool) -> None:
        self._live = live
        self.follower = follower
        self._bearer = bearer
        self._begins_now = begins_now
        self._silent_until = 0.0
        self._failures = 0

    async def begin(self) -> None:
        """Refuses whoever may not listen; finds out where now is."""

        async def look(tx: Tx) -> Bounds:
            await self._admit(tx)
            return await log.bounds(tx)

        found = await self._live.engine.read(look, zones=self._zones)
        if self._begins_now:
            self.follower.position = found.head

    async def recheck(self) -> None:
        if self._bearer is not None:
            await self._live.engine.read(lambda tx: require_bearer(tx, self._bearer), zones=self._zones)

    async def _admit(self, tx: Tx) -> None:
        """Refuses a bearer whose session has ended, and a zone that does not exist."""
        await require_bearer(tx, self._bearer)
        await zones.require(tx, self.follower.wanted.zone_id)

    def close(self, reason: str) -> None:
        self.follower.close(reason)

    def release(self) -> None:
        self._live.tailer.detach(self.follower)
        self.follower.rest()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._opening()
        while self.follower.over is None:
            yield await self._next()
        yield f": over, {self.follower.over}\n\n".encode()

    def _opening(self) -> bytes:
        self._silent_until = asyncio.get_running_loop().time() + self._live.keep_alive_seconds
        retry = b"retry: %d\n" % random.randint(*COME_AGAIN_MS)
        # A client that is cut before its first event must be able to say where it began.
        return retry + (b"id: %d\n\n" % self.follower.position if self._begins_now else b"\n")

    async def _next(self) -> bytes:
        """What there is to send; nothing, if it is worth looking again."""
        try:
            chunk = await self._news()
        except TransientError:
            # The client could do no more than come again and wait, so it may as well wait here.
            self._failures += 1
            pause = delay(RETRY, attempt=self._failures, chance=random.random()) / 1000
            await self.follower.woken(min(asyncio.get_running_loop().time() + pause, self._silent_until))
            chunk = b""
        else:
            self._failures = 0
        now = asyncio.get_running_loop().time()
        if not chunk and now >= self._silent_until:
            chunk = b": keep-alive\nid: %d\n\n" % self._position
        if chunk:
            self._silent_until = now + self._live.keep_alive_seconds
        elif self._is_idle:
            await self.follower.woken(self._silent_until)
        return chunk

    async def _news(self) -> bytes:
        """What there is to send. Raises TransientError while the database is away."""
        if self.follower.joined:
            return self.follower.take()
        page, outside = await self.follower.catch_up()
        return page if outside is None else self._reset(outside)

    def _reset(self, outside: Bounds) -> bytes:
        told = _encode({"floor": outside.floor, "head": outside.head})
        return b"id: %d\nevent: reset\ndata: %s\n\n" % (self.follower.position, told)

    @property
    def _position(self) -> int:
        """Up to here everything that is wanted was sent."""
        return self.follower.position

    @property
    def _is_idle(self) -> bool:
        """Nothing is to be done before something is heard of."""
        return self.follower.joined

    @property
    def _zones(self) -> set[str]:
        wanted = {self.follower.wanted.zone_id}
        return wanted | {self._bearer.zone_id} if self._bearer else wanted


@dataclass(frozen=True, slots=True)
class Live:
    """Opens streams. Made once, in the composition root."""

    engine: Engine
    tailer: Tailer
    streams: Streams
    keep_alive_seconds: float

    async def open(self, wanted: EventFilter, bearer: Bearer | None, *, begins_now: bool) -> EventStream:
        return await self.begin(EventStream(self, self.follower(wanted, bearer), bearer, begins_now))

    def follower(self, wanted: EventFilter, bearer: Bearer | None) -> Follower:
        """One whose stream ends with whom its bearer speaks for."""
        named = (bearer.session_id, bearer.agent_id) if bearer else ()
        watches = [Watch(bearer.zone_id, ENDED, name) for name in named if bearer and name]
        return Follower(self.tailer, self.engine, wanted, watches)

    async def begin(self, stream: S) -> S:
        self.streams.enter(stream)
        try:
            # Attached before it looks: a session that ends after the look is heard of, and one that ended before is
            # seen by it.
            await self.tailer.attach(stream.follower)
            await stream.begin()
        except BaseException:  # a cancellation too: nobody will serve it, who would have it leave
            self.streams.leave(stream)
            raise
        return stream
