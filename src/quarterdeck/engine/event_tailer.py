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

from quarterdeck.core.retry import Policy, delay
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.event_subscriber import Batch, Encode, Follower, Frame, Watch
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakes

logger = logging.getLogger("quarterdeck.tail")
PAGE = 500
GATHER_SECONDS = 0.01
"""Between two looks at the log. Whoever commits into silence is heard at once; under load what was committed meanwhile
is handed on together, because each round costs every follower a system call."""
REPLAYS = 2
"""Pages that are read at once for those who are behind: a thousand who come back together must not keep the database,
or the loop, from those who are at work."""
RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=2_000)
K = TypeVar("K")


class Tailer:
    def __init__(self, everywhere: Engine, wakes: Wakes, encode: Encode, poll_seconds: float) -> None:
        self._everywhere = everywhere
        self._wakes = wakes
        self._poll_seconds = poll_seconds
        self._followers: set[Follower] = set()
        self._by_zone: dict[str, set[Follower]] = {}
        self._by_watch: dict[Watch, set[Follower]] = {}
        self._woken = asyncio.Event()
        self._starting = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self.encode = encode
        self.position = 0
        """Up to here everything has been handed to those who were joined."""
        self.replays = asyncio.Semaphore(REPLAYS)
        self.fell_behind = 0
        """How often somebody did not keep up."""

    def __len__(self) -> int:
        return len(self._followers)

    async def attach(self, follower: Follower) -> None:
        """From here on the follower is told what is committed. Raises TransientError while the database is away."""
        async with self._starting:
            if self._running is None:
                # Read before anybody is let in: whatever a newcomer reads after this begins no lower.
                self.position = (await self._everywhere.read(log.bounds)).head
                self._running = asyncio.create_task(self._run(), name="tailer")
        self._followers.add(follower)
        self._by_zone.setdefault(follower.wanted.zone_id, set()).add(follower)
        for watch in follower.watches:
            self._by_watch.setdefault(watch, set()).add(follower)

    def detach(self, follower: Follower) -> None:
        self._followers.discard(follower)
        _remove(self._by_zone, follower.wanted.zone_id, follower)
        for watch in follower.watches:
            _remove(self._by_watch, watch, follower)
        if not self._followers:
            self._woken.set()

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    # -- reading the log ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        unsubscribe = self._wakes.subscribe(self._woken.set)
        failures = 0
        try:
            while self._followers:
                began = asyncio.get_running_loop().time()
                self._woken.clear()
                try:
                    found = await self._everywhere.read(lambda tx: log.tail(tx, self.position, PAGE))
                    self._hand_out(found)
                except Exception as error:
                    # So broad because, whatever it is, a tailer that ended of it would leave everybody with nothing but
                    # silence, and nobody would know.
                    failures += 1
                    logger.log(_level(failures), "the log cannot be followed (%d): %r", failures, error)
                    await asyncio.sleep(delay(RETRY, attempt=failures, chance=random.random()) / 1000)
                    continue
                failures = 0
                await self._pause(began, is_full=len(found) == PAGE)
        finally:
            self._running = None
            unsubscribe()

    async def _pause(self, began: float, *, is_full: bool) -> None:
        """Until there may be something to read, and a moment at least since the last look."""
        if not is_full:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._woken.wait()
        # Never nothing: where reading does not wait, as on SQLite, a full log would otherwise keep the loop to itself.
        await asyncio.sleep(max(0.0, began + GATHER_SECONDS - asyncio.get_running_loop().time()))

    def _hand_out(self, found: Sequence[Event]) -> None:
        if not found:
            return
        frames: dict[str, list[Frame]] = {}
        over: dict[Follower, str] = {}
        for event in found:
            if event.zone_id in self._by_zone:
                frames.setdefault(event.zone_id, []).append(Frame(event, self.encode(event)))
            for follower in self._by_watch.get(Watch(event.zone_id, event.type, event.subject), ()):
                over[follower] = event.type
        if found[0].pos != self.position + 1:
            # Retention has passed us by. What is gone is for each to find out, by its own position.
            for follower in self._followers:
                follower.fall_behind()
        self.position = found[-1].pos
        for zone_id, of_zone in frames.items():
            batch = Batch(of_zone)
            for follower in self._by_zone[zone_id]:
                follower.hear(batch)
        for follower, why in over.items():
            follower.close(why)


def _level(failures: int) -> int:
    """A database that is away for an hour is one line in the log of everybody, not two thousand."""
    return logging.WARNING if failures == 1 else logging.DEBUG


def _remove(kept: dict[K, set[Follower]], key: K, follower: Follower) -> None:
    found = kept.get(key, set())
    found.discard(follower)
    if not found:
        kept.pop(key, None)
