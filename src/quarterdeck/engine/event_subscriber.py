"""One who follows a zone's events: what has been handed out, what waits, and whether it is joined or behind.

`tail` says how the two places of a follower fit together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec

from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import Bounds, Event, EventFilter
from quarterdeck.engine.transaction import Engine

QUEUE_EVENTS = 1_000
QUEUE_BYTES = 512 * 1024
REPLAY_PAGE = 100
REPLAY_BYTES = 64 * 1024
"""About as much is handed out of a page at once: a reader that has stopped holds on to what it was handed last, and one
that is cut off time and again should come a step further each time."""

Encode = Callable[[Event], bytes]


class Watch(NamedTuple):
    """An event that ends the following, whatever is followed: the end of the session that follows, say."""

    zone_id: str
    type: str
    subject: str


class Frame(NamedTuple):
    event: Event
    data: bytes


class Batch:
    """What one look at the log found for one zone. All who are joined hold the same one."""

    __slots__ = ("data", "frames")

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames = frames
        self.data = b"".join(frame.data for frame in frames)

    def after(self, position: int, wanted: EventFilter) -> bytes:
        if not wanted.is_narrow and self.frames[0].event.pos > position:
            return self.data
        return b"".join(data for event, data in self.frames if event.pos > position and wanted.wants(event))

    def events_after(self, position: int, wanted: EventFilter) -> list[Event]:
        return [event for event, _ in self.frames if event.pos > position and wanted.wants(event)]


class Feed(Protocol):
    """What a follower needs of the tailer."""

    encode: Encode
    replays: asyncio.Semaphore
    position: int
    fell_behind: int


class Follower:
    def __init__(self, feed: Feed, engine: Engine, wanted: EventFilter, watches: Collection[Watch] = ()) -> None:
        self._feed = feed
        self._engine = engine
        self._queue: list[Batch] = []
        self._events = 0
        self._bytes = 0
        self._woken = asyncio.Event()
        self._due: asyncio.TimerHandle | None = None
        self._is_narrow = wanted.is_narrow
        self._page_size = REPLAY_PAGE
        self.wanted = wanted
        self.watches = watches
        self.position = wanted.after
        """Everything up to here that is wanted has been handed out."""
        self.joined = False
        self.over: str | None = None
        """Why there is nothing more to come."""

    # -- what it is told ----------------------------------------------------------------------------------------

    def hear(self, batch: Batch) -> None:
        """Something was committed in the zone."""
        if not self.joined or (self._is_narrow and not any(self.wanted.wants(e) for e, _ in batch.frames)):
            return
        self._queue.append(batch)
        self._events += len(batch.frames)
        self._bytes += len(batch.data)
        if self._events > QUEUE_EVENTS or self._bytes > QUEUE_BYTES:
            self._feed.fell_behind += 1
            self.fall_behind()
        self._woken.set()

    def fall_behind(self) -> None:
        """Forgets what waits: it stands in the log, and is read from there when there is room for it."""
        self.joined = False
        self._clear()
        self._woken.set()

    def close(self, reason: str) -> None:
        """Nothing more is handed out."""
        self.over = self.over or reason
        self._woken.set()

    # -- what it hands out --------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """What waits, and has not been handed out. Only while joined."""
        data = b"".join(batch.after(self.position, self.wanted) for batch in self._queue)
        self._clear()
        # Whoever is joined has been told of everything up to the feed's position. A page may have been ahead of it.
        self.position = max(self.position, self._feed.position)
        return data

    def take_events(self) -> list[Event]:
        """The same as events, for whoever shows something else of them than themselves."""
        found = [event for batch in self._queue for event in batch.events_after(self.position, self.wanted)]
        self._clear()
        self.position = max(self.position, self._feed.position)
        return found

    async def catch_up(self) -> tuple[bytes, Bounds | None]:
        """The next page of the log, and the log's bounds if this follower's position lay outside of them: it then goes
        on from the floor. Joined afterwards if nothing is missing any more. TransientError if the database is away."""
        page, outside = await self._next_page()
        if outside is not None:
            return b"", outside
        data, count = self._encoded(page.events)
        self._stands_behind(page, count)
        return data, None

    async def catch_up_events(self) -> tuple[list[Event], Bounds | None]:
        """The same as events."""
        page, outside = await self._next_page()
        if outside is not None:
            return [], outside
        self._stands_behind(page, len(page.events))
        return page.events, None

    async def _next_page(self) -> tuple[log.Replay, Bounds | None]:
        try:
            page = await self._page()
        except BaseException:
            # Also if whoever reads is cancelled: what it was handed meanwhile does not follow on what it has seen.
            self.joined = False
            raise
        if page.begins_after(self.position):
            return page, None
        self.joined, self.position = False, page.bounds.floor
        return page, page.bounds

    def _stands_behind(self, page: log.Replay, count: int) -> None:
        """So many of the page's events are handed out."""
        whole = count == len(page.events)
        self.joined = self.joined and whole and page.is_last
        self.position = page.covers if whole else page.events[count - 1].pos
        # Where events are large, the next page is read no larger than what can be handed out of it.
        self._page_size = min(2 * self._page_size, REPLAY_PAGE) if whole else count

    def _encoded(self, found: Sequence[Event]) -> tuple[bytes, int]:
        """As many as may be handed out at once, and how many that are; one at least."""
        frames: list[bytes] = []
        size = 0
        for event in found:
            if size >= REPLAY_BYTES:
                break
            frames.append(self._feed.encode(event))
            size += len(frames[-1])
        return b"".join(frames), len(frames)

    async def _page(self) -> log.Replay:
        wanted = msgspec.structs.replace(self.wanted, after=self.position, limit=self._page_size)
        async with self._feed.replays:
            # Before the page is read, so that the page reaches at least to where the queue begins.
            self._clear()
            self.joined = True
            page = await self._engine.read(lambda tx: log.replay(tx, wanted), zones=[wanted.zone_id])
            # Still within, because on SQLite reading does not wait: this is where others get their turn, and where what
            # was sent before reaches the socket, which may then say that its peer reads no more.
            await asyncio.sleep(0)
            return page

    async def woken(self, until: float) -> None:
        """Returns when there may be something to do, or at this instant of the loop's clock."""
        loop = asyncio.get_running_loop()
        # A timer that is early does no harm, so one that was set before is left alone: they are set once in a while
        # instead of once an event.
        if self._due is None or self._due.when() > until:
            self._cancel_due()
            self._due = loop.call_at(until, self._is_due)
        await self._woken.wait()
        self._woken.clear()

    def rest(self) -> None:
        """Lets go of everything."""
        self._clear()
        self._cancel_due()
        self.joined = False

    def _is_due(self) -> None:
        self._due = None
        self._woken.set()

    def _cancel_due(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _clear(self) -> None:
        self._queue.clear()
        self._events = self._bytes = 0
