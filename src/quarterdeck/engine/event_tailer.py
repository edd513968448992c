"""The tailer: one reader of the log in a process, however many follow it.

It reads the log after its position, across zones, and hands each zone's events to whoever follows that zone; it
reads only while somebody does. An event is encoded once, and everybody gets the same bytes.

    commit ─► Wakes ─► Tailer: the log after its position ─► by zone ─► Follower: a bounded queue ─► a stream
                                                                        ▲
                            the log after the follower's position ──────┘ replay

A follower stands in one of two places. *Joined*, what the tailer finds is put into its queue. *Behind*, it reads the
log by itself, page by page, in transactions that see its own zone only. Everybody begins behind. Before each page a
follower joins; if that page was the last, what the queue holds goes on from where the page ended, and what stands in
both is dropped by its position: positions have no gaps and are in the order of commits, so one integer says what has
been handed out. Nothing is lost or doubled, however often a follower goes from one place to the other.

How it fails. A follower that does not keep up is neither buffered without end nor cut off: when its queue is full the
queue is dropped, and it is behind again, from the last position it was handed. While the database is away the tailer
tries again, with growing pauses, and its followers stay where they are. Should retention pass the tailer by, everybody
is behind, and finds out from the log what is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from typing import TypeVar

from quarterdeck.core.retry import Policy, backoff
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.event_subscriber import EncodedEvent, EncodeEvent, EndEvent, EventBatch, EventSubscriber
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakeups

logger = logging.getLogger("quarterdeck.tail")
PAGE_EVENTS = 500
GATHER_SECONDS = 0.01
"""Between two looks at the log. Whoever commits into silence is heard at once; under load what was committed meanwhile
is handed on together, because each round costs every follower a system call."""
REPLAYS_MAX = 2
"""Pages that are read at once for those who are behind: a thousand who come back together must not keep the database,
or the loop, from those who are at work."""
RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=2_000)
K = TypeVar("K")


class EventTailer:
    def __init__(self, cross_zone_engine: Engine, wakeups: Wakeups, encode: EncodeEvent, poll_seconds: float) -> None:
        self._cross_zone_engine = cross_zone_engine
        self._wakeups = wakeups
        self._poll_seconds = poll_seconds
        self._subscribers: set[EventSubscriber] = set()
        self._by_zone: dict[str, set[EventSubscriber]] = {}
        self._by_end_event: dict[EndEvent, set[EventSubscriber]] = {}
        self._wakeup = asyncio.Event()
        self._start_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.encode = encode
        self.position = 0
        """Up to here everything has been handed to those who were joined."""
        self.replay_slots = asyncio.Semaphore(REPLAYS_MAX)
        self.fell_behind_count = 0
        """How often somebody did not keep up."""

    def __len__(self) -> int:
        return len(self._subscribers)

    async def attach(self, subscriber: EventSubscriber) -> None:
        """From here on the follower is told what is committed. Raises TransientError while the database is away."""
        async with self._start_lock:
            if self._task is None:
                # Read before anybody is let in: whatever a newcomer reads after this begins no lower.
                self.position = (await self._cross_zone_engine.read(log.read_bounds)).head
                self._task = asyncio.create_task(self._run(), name="tailer")
        self._subscribers.add(subscriber)
        self._by_zone.setdefault(subscriber.filters.zone_id, set()).add(subscriber)
        for end_event in subscriber.end_events:
            self._by_end_event.setdefault(end_event, set()).add(subscriber)

    def detach(self, subscriber: EventSubscriber) -> None:
        self._subscribers.discard(subscriber)
        _remove(self._by_zone, subscriber.filters.zone_id, subscriber)
        for end_event in subscriber.end_events:
            _remove(self._by_end_event, end_event, subscriber)
        if not self._subscribers:
            self._wakeup.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    # -- reading the log ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        unsubscribe = self._wakeups.subscribe(self._wakeup.set)
        failures = 0
        try:
            while self._subscribers:
                started_at = asyncio.get_running_loop().time()
                self._wakeup.clear()
                try:
                    events = await self._cross_zone_engine.read(
                        lambda tx: log.read_tail(tx, self.position, PAGE_EVENTS)
                    )
                    self._distribute(events)
                except Exception as error:
                    # So broad because, whatever it is, a tailer that ended of it would leave everybody with nothing but
                    # silence, and nobody would know.
                    failures += 1
                    logger.log(_log_level(failures), "the log cannot be followed (%d): %r", failures, error)
                    await asyncio.sleep(backoff(RETRY, attempt=failures, jitter=random.random()) / 1000)
                    continue
                failures = 0
                await self._pause(started_at, is_full=len(events) == PAGE_EVENTS)
        finally:
            self._task = None
            unsubscribe()

    async def _pause(self, started_at: float, *, is_full: bool) -> None:
        """Until there may be something to read, and a moment at least since the last look."""
        if not is_full:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._wakeup.wait()
        # Never nothing: where reading does not wait, as on SQLite, a full log would otherwise keep the loop to itself.
        await asyncio.sleep(max(0.0, started_at + GATHER_SECONDS - asyncio.get_running_loop().time()))

    def _distribute(self, events: Sequence[Event]) -> None:
        if not events:
            return
        frames: dict[str, list[EncodedEvent]] = {}
        end_reasons: dict[EventSubscriber, str] = {}
        for event in events:
            if event.zone_id in self._by_zone:
                frames.setdefault(event.zone_id, []).append(EncodedEvent(event, self.encode(event)))
            for subscriber in self._by_end_event.get(EndEvent(event.zone_id, event.type, event.subject), ()):
                end_reasons[subscriber] = event.type
        if events[0].pos != self.position + 1:
            # Retention has passed us by. What is gone is for each to find out, by its own position.
            for subscriber in self._subscribers:
                subscriber.fall_behind()
        self.position = events[-1].pos
        for zone_id, zone_frames in frames.items():
            batch = EventBatch(zone_frames)
            for subscriber in self._by_zone[zone_id]:
                subscriber.push(batch)
        for subscriber, reason in end_reasons.items():
            subscriber.close(reason)


def _log_level(failures: int) -> int:
    """A database that is away for an hour is one line in the log of everybody, not two thousand."""
    return logging.WARNING if failures == 1 else logging.DEBUG


def _remove(index: dict[K, set[EventSubscriber]], key: K, subscriber: EventSubscriber) -> None:
    members = index.get(key, set())
    members.discard(subscriber)
    if not members:
        index.pop(key, None)
