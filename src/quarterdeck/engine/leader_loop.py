"""Leader loops: background work that one process at a time does, as soon as something is committed.

A loop sleeps until a commit wakes it or its interval has passed, acquires its lease if there is work, and runs bounded
cycles until none is left. A process that finds the lease taken backs off: however often it is woken, it tries about
once a second. A holder without work does not renew its lease, so an idle server writes nothing.

How it fails. A failed cycle is retried with a backoff (`LoopTiming`), which wake-ups do not shorten by default. An
outage causes one line in the log and an occasional retry, and other work is not affected. A holder that fails
repeatedly releases its lease, since the work may succeed in another process. A failure that lasts for `alarm_seconds`
is logged once more, as critical. Losing the lease is not a failure.
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
from quarterdeck.engine.background import BackgroundLoop, wait_at_most
from quarterdeck.engine.leases import Fence, Lease, LeaseLost
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.leader_loop")
LEASE_MS = 5_000
LEASE_TAKEN_SECONDS = 1.0
"""The pause between two attempts to acquire a lease that another process holds."""
GATHER_SECONDS = 0.005
"""Minimum time between two cycles, unless more work is pending: commits in between are processed together."""
RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=1_000)
FAILURES_MAX = 4
"""Consecutive failures after which the holder releases its lease."""


@dataclass(frozen=True, slots=True)
class LoopTiming:
    """When a loop runs."""

    every_ms: int
    """The interval between cycles if there is no wake-up."""
    gap_seconds: float = GATHER_SECONDS
    """Minimum time between two cycles, however often the loop is woken."""
    retry: Policy = RETRY
    alarm_seconds: float | None = None
    """Log as critical after failing for this long."""
    wakes_while_failing: bool = False
    """Whether a wake-up ends the pause after a failure, once `retry.base_ms` has passed: a commit means that the
    database is reachable again. Useful if pauses are long."""


class LeaderWork(Protocol):
    """The work of a loop."""

    async def is_due(self) -> bool | float:
        """Return whether to acquire the lease now, or in how many seconds. Must not write."""

    async def run_cycle(self, fence: Fence) -> float | None:
        """Do a bounded part of the work. Return the seconds until the next cycle is due even without a commit: 0 if
        more work is ready, None if there is none."""

    async def on_stop(self, fence: Fence | None) -> None:
        """Called when the process stops. `fence` is None if the lease is not held."""


class LeaderLoop(BackgroundLoop):
    def __init__(self, name: str, engine: Engine, wakeups: Wakeups, timing: LoopTiming | int, work: LeaderWork) -> None:
        """`timing` as a number is the interval in milliseconds."""
        super().__init__(name)
        self.holder = new_id()
        self.lease = Lease(engine, name, self.holder, LEASE_MS)
        self.error: str | None = None
        """The current failure."""
        self.failing_since: float | None = None
        """On the event loop's clock."""
        self._wakeups = wakeups
        self._timing = timing if isinstance(timing, LoopTiming) else LoopTiming(timing)
        self._interval_seconds = self._timing.every_ms / 1000
        self._work = work
        self._wakeup = asyncio.Event()
        self._failures = 0
        self._has_alarmed = False

    async def stop(self) -> None:
        await super().stop()
        try:
            await self._work.on_stop(self.lease.fence())
        except (BusUnavailable, WriterFenced, LeaseLost, StoreError) as error:
            log.info("%s stopped without saving its last state: %r", self.name, error)

    async def run_now(self) -> None:
        """Run cycles until no work is left, ignoring the loop's timing. Must not be called on a started loop."""
        while (fence := await self.lease.acquire()) is not None:
            if await self._work.run_cycle(fence) != 0:
                return

    async def _run(self) -> None:
        with self._wakeups.subscribed(self._wakeup.set):
            while True:
                started_at = asyncio.get_running_loop().time()
                self._wakeup.clear()
                await self._pause(started_at, await self._try_cycle())

    async def _try_cycle(self) -> tuple[float, bool]:
        """Run one cycle if this process holds the lease. Return how long to pause, and whether a wake-up ends it."""
        try:
            pause, can_be_woken = await self._run_cycle()
        except (LeaseLost, WriterFenced) as lost:
            log.info("%s: another process has taken over: %s", self.name, lost)
            return LEASE_TAKEN_SECONDS, False
        except Exception as error:
            # Broad, because the end of this task would go unnoticed: its work would never be done again.
            await self._on_failure(error)
            pause = backoff(self._timing.retry, attempt=self._failures, jitter=random.random()) / 1000
            return pause, self._timing.wakes_while_failing
        if self._failures:
            log.warning("%s works again after %d failures", self.name, self._failures)
        self._failures, self.error, self.failing_since, self._has_alarmed = 0, None, None, False
        return pause, can_be_woken

    async def _run_cycle(self) -> tuple[float, bool]:
        fence = self.lease.fence()
        if fence is None:
            due_in_seconds = await self._work.is_due()
            if due_in_seconds is False:
                return self._interval_seconds, True
            if due_in_seconds is not True and due_in_seconds > 0:
                return min(due_in_seconds, self._interval_seconds), True
            fence = await self.lease.acquire()
        if fence is None:
            return LEASE_TAKEN_SECONDS, False
        next_in_seconds = await self._work.run_cycle(fence)
        if next_in_seconds is None:
            return self._interval_seconds, True
        return min(next_in_seconds, self._interval_seconds), True

    async def _on_failure(self, error: Exception) -> None:
        self._failures += 1
        now = asyncio.get_running_loop().time()
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.error = f"{error}" if isinstance(error, BusUnavailable) else repr(error)
        is_expected = isinstance(error, BusUnavailable | StoreError | Unavailable)
        if self._failures == 1 or not is_expected:
            log.warning("%s failed: %s", self.name, self.error, exc_info=not is_expected)
        alarm = self._timing.alarm_seconds
        if alarm is not None and not self._has_alarmed and now - self.failing_since >= alarm:
            self._has_alarmed = True
            log.critical("%s has been failing for %d s: %s", self.name, now - self.failing_since, self.error)
        if self._failures % FAILURES_MAX == 0:
            # If that fails, too, the lease expires.
            with contextlib.suppress(StoreError):
                await self.lease.release()

    async def _pause(self, started_at: float, pause: tuple[float, bool]) -> None:
        seconds, can_be_woken = pause
        if seconds == 0:
            # Always yields: on SQLite a read does not suspend, and a long log would block the event loop.
            await asyncio.sleep(0)
            return
        unwakeable_seconds = min(seconds, self._timing.retry.base_ms / 1000) if self._failures else 0.0
        await asyncio.sleep(unwakeable_seconds if can_be_woken else seconds)
        if not can_be_woken:
            return
        await wait_at_most(seconds - unwakeable_seconds, self._wakeup.wait())
        await asyncio.sleep(max(0.0, started_at + self._timing.gap_seconds - asyncio.get_running_loop().time()))
