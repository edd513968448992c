"""One subscriber to a zone's events: its position, its queue, and whether it is live or behind.

`event_tailer` describes how the two states fit together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec

from quarterdeck.engine import event_log
from quarterdeck.engine.event_log import Event, EventFilter, LogBounds
from quarterdeck.engine.transaction import Engine

QUEUE_EVENTS_MAX = 1_000
QUEUE_BYTES_MAX = 512 * 1024
REPLAY_PAGE_EVENTS = 100
REPLAY_BYTES_MAX = 64 * 1024
"""Approximate maximum size of one delivery from a page. If a reader stops reading, its last delivery stays in memory;
and a reader that is disconnected repeatedly must still advance each time."""

EncodeEvent = Callable[[Event], bytes]


class EndEvent(NamedTuple):
    """An event that ends a subscription even if its filter excludes the event: the end of the reader's session."""

    zone_id: str
    type: str
    subject: str


class EncodedEvent(NamedTuple):
    event: Event
    data: bytes


class EventBatch:
    """The events of one zone from one read of the log. All live subscribers share it."""

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
    """What a subscriber needs from the tailer."""

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
        self._page_size = REPLAY_PAGE_EVENTS
        self.filters = filters
        self.end_events = end_events
        self.position = filters.after
        """All matching events up to here have been delivered."""
        self.is_live = False
        self.end_reason: str | None = None
        """Why no more events follow."""

    # -- input from the tailer ----------------------------------------------------------------------------------

    def push(self, batch: EventBatch) -> None:
        """Queue events that were committed in the zone."""
        if not self.is_live or (self._is_filtered and not any(self.filters.matches(e) for e, _ in batch.frames)):
            return
        self._queue.append(batch)
        self._queued_events += len(batch.frames)
        self._queued_bytes += len(batch.data)
        if self._queued_events > QUEUE_EVENTS_MAX or self._queued_bytes > QUEUE_BYTES_MAX:
            self._feed.fell_behind_count += 1
            self.fall_behind()
        self._wakeup.set()

    def fall_behind(self) -> None:
        """Drop the queue. Its events are in the log and are read from there when the reader is ready."""
        self.is_live = False
        self._clear()
        self._wakeup.set()

    def close(self, reason: str) -> None:
        """End the subscription. No more events are delivered."""
        self.end_reason = self.end_reason or reason
        self._wakeup.set()

    # -- output to the reader -----------------------------------------------------------------------------------

    def take(self) -> bytes:
        """Clear the queue and return its undelivered events, encoded. Call this only while the subscriber is live."""
        data = b"".join(batch.data_after(self.position, self.filters) for batch in self._queue)
        self._clear()
        # A live subscriber has everything up to the feed's position. A replayed page may have been ahead of it.
        self.position = max(self.position, self._feed.position)
        return data

    def take_events(self) -> list[Event]:
        """Like `take`, but with `Event` objects, for readers that render them differently."""
        events = [event for batch in self._queue for event in batch.events_after(self.position, self.filters)]
        self._clear()
        self.position = max(self.position, self._feed.position)
        return events

    async def catch_up(self) -> tuple[bytes, LogBounds | None]:
        """Read and encode the next page of the log. If the position is outside the log's bounds, return the bounds
        instead and continue from the floor. If the page was the last, the subscriber is live afterwards. Raises
        TransientError if the database is not reachable."""
        page, missed_bounds = await self._next_page()
        if missed_bounds is not None:
            return b"", missed_bounds
        data, count = self._encode_events(page.events)
        self._advance(page, count)
        return data, None

    async def catch_up_events(self) -> tuple[list[Event], LogBounds | None]:
        """Like `catch_up`, but with `Event` objects."""
        page, missed_bounds = await self._next_page()
        if missed_bounds is not None:
            return [], missed_bounds
        self._advance(page, len(page.events))
        return page.events, None

    async def _next_page(self) -> tuple[event_log.ReplayPage, LogBounds | None]:
        try:
            page = await self._read_page()
        except BaseException:
            # Also on cancellation: the queued events do not continue where the reader stopped.
            self.is_live = False
            raise
        if page.continues_from(self.position):
            return page, None
        self.is_live, self.position = False, page.bounds.floor
        return page, page.bounds

    def _advance(self, page: event_log.ReplayPage, count: int) -> None:
        """Record that the first `count` events of the page are delivered."""
        is_complete = count == len(page.events)
        self.is_live = self.is_live and is_complete and page.is_last
        self.position = page.covers_to if is_complete else page.events[count - 1].pos
        # If events are large, read no more next time than can be delivered.
        self._page_size = min(2 * self._page_size, REPLAY_PAGE_EVENTS) if is_complete else count

    def _encode_events(self, events: Sequence[Event]) -> tuple[bytes, int]:
        """Encode as many events as may be delivered at once, at least one. Return the data and the number of events."""
        frames: list[bytes] = []
        size = 0
        for event in events:
            if size >= REPLAY_BYTES_MAX:
                break
            frames.append(self._feed.encode(event))
            size += len(frames[-1])
        return b"".join(frames), len(frames)

    async def _read_page(self) -> event_log.ReplayPage:
        filters = msgspec.structs.replace(self.filters, after=self.position, limit=self._page_size)
        async with self._feed.replay_slots:
            # Done before the page is read, so that there is no gap between the page and the queue.
            self._clear()
            self.is_live = True
            page = await self._engine.read(lambda tx: event_log.read_replay(tx, filters), zones=[filters.zone_id])
            # On SQLite a read does not suspend, so other tasks run here, while the slot is still held. Data sent
            # earlier reaches the socket, which may then report that its peer has stopped reading.
            await asyncio.sleep(0)
            return page

    async def wait(self, deadline: float) -> None:
        """Return when there may be something to do, or at `deadline` on the loop's clock."""
        loop = asyncio.get_running_loop()
        # A timer that fires early does no harm, so an existing one is kept. Otherwise each event would set a new timer.
        if self._timer is None or self._timer.when() > deadline:
            self._cancel_timer()
            self._timer = loop.call_at(deadline, self._on_timer)
        await self._wakeup.wait()
        self._wakeup.clear()

    def release(self) -> None:
        """Free all resources."""
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
