"""One who follows a zone's events: what has been handed out, what waits, and whether it is joined or behind.

`tail` says how the two places of a follower fit together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec

from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import Event, EventFilter, LogBounds
from quarterdeck.engine.transaction import Engine

QUEUE_EVENTS = 1_000
QUEUE_BYTES = 512 * 1024
REPLAY_PAGE = 100
REPLAY_BYTES = 64 * 1024
"""About as much is handed out of a page at once: a reader that has stopped holds on to what it was handed last, and one
that is cut off time and again should come a step further each time."""

EncodeEvent = Callable[[Event], bytes]


class EndEvent(NamedTuple):
    """An event that ends the following, whatever is followed: the end of the session that follows, say."""

    zone_id: str
    type: str
    subject: str


class EncodedEvent(NamedTuple):
    event: Event
    data: bytes


class EventBatch:
    """What one look at the log found for one zone. All who are joined hold the same one."""

    __slots__ = ("data", "frames")

    def __init__(self, frames: Sequence[EncodedEvent]) -> None:
        self.frames = frames
        self.data = b"".join(frame.data for frame in frames)

    def data_after(self, position: int, filters: EventFilter) -> bytes:
        if not filters.is_filtered and self.frames[0].event.pos > position:
            return self.data
        return b"".join(data for event, data in self.frames if event.pos > position and filters.matches(event))

    def events_after(self, position: int, filters: EventFilter) -> list[Event]:
        return [event for event, _ in self.frames if event.pos > position and filters.matches(event)]


class EventFeed(Protocol):
    """What a follower needs of the tailer."""

    encode: EncodeEvent
    replay_slots: asyncio.Semaphore
    position: int
    fell_behind_count: int


class EventSubscriber:
    def __init__(
        self, feed: EventFeed, engine: Engine, filters: EventFilter, end_events: Collection[EndEvent] = ()
    ) -> None:
        self._feed = feed
        self._engine = engine
        self._queue: list[EventBatch] = []
        self._queued_events = 0
        self._queued_bytes = 0
        self._wakeup = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_filtered = filters.is_filtered
        self._page_size = REPLAY_PAGE
        self.filters = filters
        self.end_events = end_events
        self.position = filters.after
        """Everything up to here that is wanted has been handed out."""
        self.is_live = False
        self.end_reason: str | None = None
        """Why there is nothing more to come."""

    # -- what it is told ----------------------------------------------------------------------------------------

    def push(self, batch: EventBatch) -> None:
        """Something was committed in the zone."""
        if not self.is_live or (self._is_filtered and not any(self.filters.matches(e) for e, _ in batch.frames)):
            return
        self._queue.append(batch)
        self._queued_events += len(batch.frames)
        self._queued_bytes += len(batch.data)
        if self._queued_events > QUEUE_EVENTS or self._queued_bytes > QUEUE_BYTES:
            self._feed.fell_behind_count += 1
            self.fall_behind()
        self._wakeup.set()

    def fall_behind(self) -> None:
        """Forgets what waits: it stands in the log, and is read from there when there is room for it."""
        self.is_live = False
        self._clear()
        self._wakeup.set()

    def close(self, reason: str) -> None:
        """Nothing more is handed out."""
        self.end_reason = self.end_reason or reason
        self._wakeup.set()

    # -- what it hands out --------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """What waits, and has not been handed out. Only while joined."""
        data = b"".join(batch.data_after(self.position, self.filters) for batch in self._queue)
        self._clear()
        # Whoever is joined has been told of everything up to the feed's position. A page may have been ahead of it.
        self.position = max(self.position, self._feed.position)
        return data

    def take_events(self) -> list[Event]:
        """The same as events, for whoever shows something else of them than themselves."""
        found = [event for batch in self._queue for event in batch.events_after(self.position, self.filters)]
        self._clear()
        self.position = max(self.position, self._feed.position)
        return found

    async def catch_up(self) -> tuple[bytes, LogBounds | None]:
        """The next page of the log, and the log's bounds if this follower's position lay outside of them: it then goes
        on from the floor. Joined afterwards if nothing is missing any more. TransientError if the database is away."""
        page, missed_bounds = await self._next_page()
        if missed_bounds is not None:
            return b"", missed_bounds
        data, count = self._encode_events(page.events)
        self._advance(page, count)
        return data, None

    async def catch_up_events(self) -> tuple[list[Event], LogBounds | None]:
        """The same as events."""
        page, missed_bounds = await self._next_page()
        if missed_bounds is not None:
            return [], missed_bounds
        self._advance(page, len(page.events))
        return page.events, None

    async def _next_page(self) -> tuple[log.ReplayPage, LogBounds | None]:
        try:
            page = await self._read_page()
        except BaseException:
            # Also if whoever reads is cancelled: what it was handed meanwhile does not follow on what it has seen.
            self.is_live = False
            raise
        if page.continues_from(self.position):
            return page, None
        self.is_live, self.position = False, page.bounds.floor
        return page, page.bounds

    def _advance(self, page: log.ReplayPage, count: int) -> None:
        """So many of the page's events are handed out."""
        is_complete = count == len(page.events)
        self.is_live = self.is_live and is_complete and page.is_last
        self.position = page.covers_to if is_complete else page.events[count - 1].pos
        # Where events are large, the next page is read no larger than what can be handed out of it.
        self._page_size = min(2 * self._page_size, REPLAY_PAGE) if is_complete else count

    def _encode_events(self, events: Sequence[Event]) -> tuple[bytes, int]:
        """As many as may be handed out at once, and how many that are; one at least."""
        frames: list[bytes] = []
        size = 0
        for event in events:
            if size >= REPLAY_BYTES:
                break
            frames.append(self._feed.encode(event))
            size += len(frames[-1])
        return b"".join(frames), len(frames)

    async def _read_page(self) -> log.ReplayPage:
        filters = msgspec.structs.replace(self.filters, after=self.position, limit=self._page_size)
        async with self._feed.replay_slots:
            # Before the page is read, so that the page reaches at least to where the queue begins.
            self._clear()
            self.is_live = True
            page = await self._engine.read(lambda tx: log.read_replay(tx, filters), zones=[filters.zone_id])
            # Still within, because on SQLite reading does not wait: this is where others get their turn, and where what
            # was sent before reaches the socket, which may then say that its peer reads no more.
            await asyncio.sleep(0)
            return page

    async def wait(self, deadline: float) -> None:
        """Returns when there may be something to do, or at this instant of the loop's clock."""
        loop = asyncio.get_running_loop()
        # A timer that is early does no harm, so one that was set before is left alone: they are set once in a while
        # instead of once an event.
        if self._timer is None or self._timer.when() > deadline:
            self._cancel_timer()
            self._timer = loop.call_at(deadline, self._on_timer)
        await self._wakeup.wait()
        self._wakeup.clear()

    def release(self) -> None:
        """Lets go of everything."""
        self._clear()
        self._cancel_timer()
        self.is_live = False

    def _on_timer(self) -> None:
        self._timer = None
        self._wakeup.set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _clear(self) -> None:
        self._queue.clear()
        self._queued_events = self._queued_bytes = 0
