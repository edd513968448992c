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

from quarterdeck.bus.redis.interfaces import BusUnavailable, WriterFenced
from quarterdeck.core.errors import Unavailable
from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.engine.leases import Fence, Lease, LeaseLost
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.duties")
LEASE_MS = 5_000
LEASE_TAKEN_SECONDS = 1.0
"""Between two asks for a lease that another holds."""
GATHER_SECONDS = 0.005
"""Between two turns, unless there is more than one turn's work: what is committed meanwhile goes together."""
RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=1_000)
FAILURES_MAX = 4
"""Failures in a row after which another process may try."""


@dataclass(frozen=True, slots=True)
class LoopTiming:
    """When a duty is looked after."""

    every_ms: int
    """By itself, should no wake come."""
    gap_seconds: float = GATHER_SECONDS
    """Between two turns at least, however often it is woken."""
    retry: Policy = RETRY
    alarm_seconds: float | None = None
    """Failing for so long is an alarm."""
    wakes_while_failing: bool = False
    """Whether a wake ends a pause after a failure, once it has lasted as long as the first: somebody has committed, so
    the database is back. For pauses that are long."""


class LeaderWork(Protocol):
    """What a duty consists of."""

    async def is_due(self) -> bool | float:
        """Whether it is worth a lease, or in how many seconds it will be. Only reads."""

    async def run_cycle(self, fence: Fence) -> float | None:
        """Does a bounded part of it. In how many seconds there is more, whoever commits: 0 for at once; None if nothing
        is left."""

    async def on_stop(self, fence: Fence | None) -> None:
        """The process stops. The fence is there if the lease still is."""


class LeaderLoop:
    def __init__(self, name: str, engine: Engine, wakeups: Wakeups, timing: LoopTiming | int, work: LeaderWork) -> None:
        """A pace that is only a number is how often it is looked after, in milliseconds."""
        self.name = name
        self.holder = new_id()
        self.lease = Lease(engine, name, self.holder, LEASE_MS)
        self.error: str | None = None
        """What is wrong just now."""
        self.failing_since: float | None = None
        """By the loop's clock."""
        self._wakeups = wakeups
        self._timing = timing if isinstance(timing, LoopTiming) else LoopTiming(timing)
        self._interval_seconds = self._timing.every_ms / 1000
        self._work = work
        self._wakeup = asyncio.Event()
        self._failures = 0
        self._has_alarmed = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        try:
            await self._work.on_stop(self.lease.fence())
        except (BusUnavailable, WriterFenced, LeaseLost, StoreError) as error:
            log.info("%s stopped where it was: %r", self.name, error)

    async def run_now(self) -> None:
        """Takes turns until nothing is left, for whoever has not started it: what is done by a clock of one's own is
        not to wait for this one's. Never beside `start`."""
        while (fence := await self.lease.acquire()) is not None:
            if await self._work.run_cycle(fence) != 0:
                return

    async def _run(self) -> None:
        unsubscribe = self._wakeups.subscribe(self._wakeup.set)
        try:
            while True:
                started_at = asyncio.get_running_loop().time()
                self._wakeup.clear()
                await self._pause(started_at, await self._try_cycle())
        finally:
            unsubscribe()

    async def _try_cycle(self) -> tuple[float, bool]:
        """One turn, if it is ours. How long to rest, and whether a wake ends that."""
        try:
            pause, can_be_woken = await self._run_cycle()
        except (LeaseLost, WriterFenced) as lost:
            log.info("%s is another's now: %s", self.name, lost)
            return LEASE_TAKEN_SECONDS, False
        except Exception as error:
            # So broad because nobody would notice the end of this task: what it does would be late for ever.
            await self._on_failure(error)
            pause = backoff(self._timing.retry, attempt=self._failures, jitter=random.random()) / 1000
            return pause, self._timing.wakes_while_failing
        if self._failures:
            log.warning("%s goes on after %d failures", self.name, self._failures)
        self._failures, self.error, self.failing_since, self._has_alarmed = 0, None, None, False
        return pause, can_be_woken

    async def _run_cycle(self) -> tuple[float, bool]:
        fence = self.lease.fence()
        if fence is None:
            due_in = await self._work.is_due()
            if due_in is False:
                return self._interval_seconds, True
            if due_in is not True and due_in > 0:
                return min(due_in, self._interval_seconds), True
            fence = await self.lease.acquire()
        if fence is None:
            return LEASE_TAKEN_SECONDS, False
        next_in = await self._work.run_cycle(fence)
        return (self._interval_seconds, True) if next_in is None else (min(next_in, self._interval_seconds), True)

    async def _on_failure(self, error: Exception) -> None:
        self._failures += 1
        now = asyncio.get_running_loop().time()
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.error = f"{error}" if isinstance(error, BusUnavailable) else repr(error)
        is_expected = isinstance(error, BusUnavailable | StoreError | Unavailable)
        if self._failures == 1 or not is_expected:
            log.warning("%s cannot go on: %s", self.name, self.error, exc_info=not is_expected)
        alarm = self._timing.alarm_seconds
        if alarm is not None and not self._has_alarmed and now - self.failing_since >= alarm:
            self._has_alarmed = True
            log.critical("%s has not gone on for %d s: %s", self.name, now - self.failing_since, self.error)
        if self._failures % FAILURES_MAX == 0:
            # If even that cannot be said, the lease runs out by itself.
            with contextlib.suppress(StoreError):
                await self.lease.release()

    async def _pause(self, started_at: float, pause: tuple[float, bool]) -> None:
        seconds, can_be_woken = pause
        if seconds == 0:
            # Never nothing: where reading does not wait, as on SQLite, a long log would keep the loop to itself.
            await asyncio.sleep(0)
            return
        unwakeable_seconds = min(seconds, self._timing.retry.base_ms / 1000) if self._failures else 0.0
        await asyncio.sleep(unwakeable_seconds if can_be_woken else seconds)
        if not can_be_woken:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - unwakeable_seconds):
                await self._wakeup.wait()
        await asyncio.sleep(max(0.0, started_at + self._timing.gap_seconds - asyncio.get_running_loop().time()))
