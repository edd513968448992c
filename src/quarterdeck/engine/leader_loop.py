"""Duties: what one process at a time does, as soon as something is committed.

A duty sleeps until a commit wakes it or its interval is over, takes its lease if there is anything to do, and does one
bounded turn after another until there is nothing left. A process that finds the lease taken lets the holder be for a
while: however often it is woken, it asks no more than about once a second. A holder that has nothing to do does not
renew its lease: a server that idles writes nothing.

How it fails. A turn that fails is tried again with growing pauses (`Pace`), which wakes do not cut short, or not by
much: an outage is one line in the log and a try now and then, and nothing else stops for it. A holder that fails time
and again gives its lease back, since another process may reach what this one does not. A failure that lasts is said
once more, and louder. A lease that was lost is no failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass
from typing import Protocol

from quarterdeck.bus.redis.interfaces import Away, Fenced
from quarterdeck.core.errors import Unavailable
from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import Policy, delay
from quarterdeck.engine.leases import Fence, Lease, LeaseLost
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakes
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.duties")
LEASE_MS = 5_000
ELSEWHERE_SECONDS = 1.0
"""Between two asks for a lease that another holds."""
GATHER_SECONDS = 0.005
"""Between two turns, unless there is more than one turn's work: what is committed meanwhile goes together."""
RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=1_000)
FAILURES_MAX = 4
"""Failures in a row after which another process may try."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When a duty is looked after."""

    every_ms: int
    """By itself, should no wake come."""
    gap_seconds: float = GATHER_SECONDS
    """Between two turns at least, however often it is woken."""
    retry: Policy = RETRY
    alarm_seconds: float | None = None
    """Failing for so long is an alarm."""
    hears_while_failing: bool = False
    """Whether a wake ends a pause after a failure, once it has lasted as long as the first: somebody has committed, so
    the database is back. For pauses that are long."""


class Work(Protocol):
    """What a duty consists of."""

    async def is_due(self) -> bool | float:
        """Whether it is worth a lease, or in how many seconds it will be. Only reads."""

    async def turn(self, fence: Fence) -> float | None:
        """Does a bounded part of it. In how many seconds there is more, whoever commits: 0 for at once; None if nothing
        is left."""

    async def rest(self, fence: Fence | None) -> None:
        """The process stops. The fence is there if the lease still is."""


class Duty:
    def __init__(self, name: str, engine: Engine, wakes: Wakes, pace: Pace | int, work: Work) -> None:
        """A pace that is only a number is how often it is looked after, in milliseconds."""
        self.name = name
        self.holder = new_id()
        self.lease = Lease(engine, name, self.holder, LEASE_MS)
        self.error: str | None = None
        """What is wrong just now."""
        self.failing_since: float | None = None
        """By the loop's clock."""
        self._wakes = wakes
        self._pace = pace if isinstance(pace, Pace) else Pace(pace)
        self._every_seconds = self._pace.every_ms / 1000
        self._work = work
        self._woken = asyncio.Event()
        self._failures = 0
        self._has_alarmed = False
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name=self.name)

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None
        try:
            await self._work.rest(self.lease.fence())
        except (Away, Fenced, LeaseLost, StoreError) as error:
            log.info("%s stopped where it was: %r", self.name, error)

    async def run_now(self) -> None:
        """Takes turns until nothing is left, for whoever has not started it: what is done by a clock of one's own is
        not to wait for this one's. Never beside `start`."""
        while (fence := await self.lease.hold()) is not None:
            if await self._work.turn(fence) != 0:
                return

    async def _run(self) -> None:
        unsubscribe = self._wakes.subscribe(self._woken.set)
        try:
            while True:
                began = asyncio.get_running_loop().time()
                self._woken.clear()
                await self._pause(began, await self._tried())
        finally:
            unsubscribe()

    async def _tried(self) -> tuple[float, bool]:
        """One turn, if it is ours. How long to rest, and whether a wake ends that."""
        try:
            pause, can_be_woken = await self._turn()
        except (LeaseLost, Fenced) as lost:
            log.info("%s is another's now: %s", self.name, lost)
            return ELSEWHERE_SECONDS, False
        except Exception as error:
            # So broad because nobody would notice the end of this task: what it does would be late for ever.
            await self._failed(error)
            pause = delay(self._pace.retry, attempt=self._failures, chance=random.random()) / 1000
            return pause, self._pace.hears_while_failing
        if self._failures:
            log.warning("%s goes on after %d failures", self.name, self._failures)
        self._failures, self.error, self.failing_since, self._has_alarmed = 0, None, None, False
        return pause, can_be_woken

    async def _turn(self) -> tuple[float, bool]:
        fence = self.lease.fence()
        if fence is None:
            due = await self._work.is_due()
            if due is False:
                return self._every_seconds, True
            if due is not True and due > 0:
                return min(due, self._every_seconds), True
            fence = await self.lease.hold()
        if fence is None:
            return ELSEWHERE_SECONDS, False
        again = await self._work.turn(fence)
        return (self._every_seconds, True) if again is None else (min(again, self._every_seconds), True)

    async def _failed(self, error: Exception) -> None:
        self._failures += 1
        now = asyncio.get_running_loop().time()
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.error = f"{error}" if isinstance(error, Away) else repr(error)
        expected = isinstance(error, Away | StoreError | Unavailable)
        if self._failures == 1 or not expected:
            log.warning("%s cannot go on: %s", self.name, self.error, exc_info=not expected)
        alarm = self._pace.alarm_seconds
        if alarm is not None and not self._has_alarmed and now - self.failing_since >= alarm:
            self._has_alarmed = True
            log.critical("%s has not gone on for %d s: %s", self.name, now - self.failing_since, self.error)
        if self._failures % FAILURES_MAX == 0:
            # If even that cannot be said, the lease runs out by itself.
            with contextlib.suppress(StoreError):
                await self.lease.release()

    async def _pause(self, began: float, rest: tuple[float, bool]) -> None:
        seconds, can_be_woken = rest
        if seconds == 0:
            # Never nothing: where reading does not wait, as on SQLite, a long log would keep the loop to itself.
            await asyncio.sleep(0)
            return
        deaf = min(seconds, self._pace.retry.base_ms / 1000) if self._failures else 0.0
        await asyncio.sleep(deaf if can_be_woken else seconds)
        if not can_be_woken:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - deaf):
                await self._woken.wait()
        await asyncio.sleep(max(0.0, began + self._pace.gap_seconds - asyncio.get_running_loop().time()))
