"""The tailer: one reader of the log per process, for any number of subscribers.

It reads the log after its position, across zones, and passes the events of each zone to the subscribers of that zone.
It runs only while there are subscribers. Each event is encoded once, and all subscribers get the same bytes.

    commit ─► Wakeups ─► EventTailer: the log after its position ─► by zone ─► EventSubscriber: a queue ─► a stream
                                                                               ▲
                              the log after the subscriber's position ─────────┘ replay

A subscriber is in one of two states. *Live*: the tailer appends events to its queue. *Behind*: it reads the log itself,
page by page, in transactions that see only its zone. Every subscriber starts behind. Before it reads a page it becomes
live, so that its queue fills meanwhile. If the page was the last, it stays live: the queue continues where the page
ended, and queued events that were also in the page are skipped by their position. Positions have no gaps and are in
commit order, so one integer says what has been delivered. No event is lost or duplicated, however often a subscriber
changes state.

How it fails. A slow subscriber is not disconnected, and its queue does not grow without limit: when the queue is full,
it is dropped, and the subscriber is behind again, at the last delivered position. While the database is not reachable,
the tailer retries with a backoff, and its subscribers keep their positions. If retention overtakes the tailer, all
subscribers fall behind and find out from the log which events were deleted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import TypeVar

from quarterdeck.core.retry import Policy, backoff
from quarterdeck.engine import event_log
from quarterdeck.engine.background import BackgroundLoop, wait_at_most
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.event_subscriber import EncodedEvent, EncodeEvent, EndEvent, EventBatch, EventSubscriber
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakeups

log = logging.getLogger("quarterdeck.tail")
PAGE_EVENTS = 500
GATHER_SECONDS = 0.01
"""Minimum time between two reads of the log. The first commit after a pause is delivered at once; under load, events
are delivered together, because each round costs a system call per subscriber."""
REPLAYS_MAX = 2
"""Maximum concurrent page reads for subscribers that are behind: a thousand subscribers that reconnect at once must not
keep the database or the event loop from other work."""
RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=2_000)
K = TypeVar("K")


class EventTailer(BackgroundLoop):
    def __init__(self, cross_zone_engine: Engine, wakeups: Wakeups, encode: EncodeEvent, poll_seconds: float) -> None:
        super().__init__("tailer")
        self._cross_zone_engine = cross_zone_engine
        self._wakeups = wakeups
        self._poll_seconds = poll_seconds
        self._subscribers: set[EventSubscriber] = set()
        self._by_zone: dict[str, set[EventSubscriber]] = {}
        self._by_end_event: dict[EndEvent, set[EventSubscriber]] = {}
        self._wakeup = asyncio.Event()
        self._start_lock = asyncio.Lock()
        self.encode = encode
        self.position = 0
        """Everything up to here has been passed to the live subscribers."""
        self.replay_slots = asyncio.Semaphore(REPLAYS_MAX)
        self.fell_behind_count = 0
        """How often a subscriber was too slow."""

    def __len__(self) -> int:
        return len(self._subscribers)

    async def attach(self, subscriber: EventSubscriber) -> None:
        """Pass new events to the subscriber from now on. Raises TransientError if the database is not reachable."""
        async with self._start_lock:
            if not self.is_running:
                # Read before the first subscriber is added, so that its replay reaches at least this position.
                self.position = (await self._cross_zone_engine.read(event_log.read_bounds)).head
                self.start()
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

    # -- reading the log ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        with self._wakeups.subscribed(self._wakeup.set):
            while self._subscribers:
                started_at = asyncio.get_running_loop().time()
                self._wakeup.clear()
                try:
                    events = await self._cross_zone_engine.read(
                        lambda tx: event_log.read_tail(tx, self.position, PAGE_EVENTS)
                    )
                    self._distribute(events)
                except Exception as error:
                    # Broad, because the end of this task would go unnoticed: all subscribers would get nothing more.
                    failures += 1
                    log.log(_log_level(failures), "cannot read the event log (%d): %r", failures, error)
                    await asyncio.sleep(backoff(RETRY, attempt=failures, jitter=random.random()) / 1000)
                    continue
                failures = 0
                await self._pause(started_at, is_full=len(events) == PAGE_EVENTS)

    async def _pause(self, started_at: float, *, is_full: bool) -> None:
        """Wait until there may be something to read, and at least `GATHER_SECONDS` since the last read."""
        if not is_full:
            await wait_at_most(self._poll_seconds, self._wakeup.wait())
        # Always sleeps: on SQLite a read does not suspend, and a long log would block the event loop.
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
            # Retention has overtaken the tailer. Each subscriber finds out from its own position what was deleted.
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
    """One warning per outage: an hour without the database would otherwise log 2,000 lines."""
    return logging.WARNING if failures == 1 else logging.DEBUG


def _remove(index: dict[K, set[EventSubscriber]], key: K, subscriber: EventSubscriber) -> None:
    subscribers = index.get(key, set())
    subscribers.discard(subscriber)
    if not subscribers:
        index.pop(key, None)
