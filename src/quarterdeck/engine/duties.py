"""Duties: what one process at a time does, as soon as something is committed.

A duty sleeps until a commit wakes it or its interval is over, takes its lease if there is anything to do, and does one
bounded turn after another until there is nothing left. A process that finds the lease taken lets the holder be for a
while: however often it is woken, it asks no more than about once a second. A holder that has nothing to do does not
renew its lease: a server that idles writes nothing.

How it fails. A turn that fails is tried again with growing pauses, which no wake cuts short: an outage is one line in
the log and a try a second, and nothing else stops for it. A holder that fails time and again gives its lease back,
since another process may reach what this one does not. A lease that was lost is no failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Protocol

from quarterdeck.bus.port import Away, Fenced
from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import Policy, delay
from quarterdeck.engine.leases import Fence, Lease, LeaseLost
from quarterdeck.engine.tx import Engine
from quarterdeck.engine.wake import Wakes
from quarterdeck.store.port import StoreError

log = logging.getLogger("quarterdeck.duties")
LEASE_MS = 5_000
ELSEWHERE_SECONDS = 1.0
"""Between two asks for a lease that another holds."""
GATHER_SECONDS = 0.005
"""Between two turns, unless there is more than one turn's work: what is committed meanwhile goes together."""
RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=1_000)
FAILURES_MAX = 4
"""Failures in a row after which another process may try."""


class Work(Protocol):
    """What a duty consists of."""

    async def is_due(self) -> bool:
        """Whether it is worth a lease. Only reads."""

    async def turn(self, fence: Fence) -> float | None:
        """Does a bounded part of it. In how many seconds there is more, whoever commits: 0 for at once; None if nothing
        is left."""

    async def rest(self, fence: Fence | None) -> None:
        """The process stops. The fence is there if the lease still is."""


class Duty:
    def __init__(self, name: str, engine: Engine, wakes: Wakes, every_ms: int, work: Work) -> None:
        self.name = name
        self.holder = new_id()
        self.lease = Lease(engine, name, self.holder, LEASE_MS)
        self.error: str | None = None
        """What is wrong just now."""
        self._wakes = wakes
        self._every_seconds = every_ms / 1000
        self._work = work
        self._woken = asyncio.Event()
        self._failures = 0
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name=self.name)

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
            return delay(RETRY, attempt=self._failures, chance=random.random()) / 1000, False
        if self._failures:
            log.warning("%s goes on after %d failures", self.name, self._failures)
        self._failures, self.error = 0, None
        return pause, can_be_woken

    async def _turn(self) -> tuple[float, bool]:
        fence = self.lease.fence()
        if fence is None:
            if not await self._work.is_due():
                return self._every_seconds, True
            fence = await self.lease.hold()
        if fence is None:
            return ELSEWHERE_SECONDS, False
        again = await self._work.turn(fence)
        return (self._every_seconds, True) if again is None else (min(again, self._every_seconds), True)

    async def _failed(self, error: Exception) -> None:
        self._failures += 1
        self.error = f"{error}" if isinstance(error, Away) else repr(error)
        expected = isinstance(error, Away | StoreError)
        if self._failures == 1 or not expected:
            log.warning("%s cannot go on: %s", self.name, self.error, exc_info=not expected)
        if self._failures % FAILURES_MAX == 0:
            with contextlib.suppress(StoreError):
                await self.lease.release()

    async def _pause(self, began: float, rest: tuple[float, bool]) -> None:
        seconds, can_be_woken = rest
        if seconds == 0:
            # Never nothing: where reading does not wait, as on SQLite, a long log would keep the loop to itself.
            await asyncio.sleep(0)
            return
        if not can_be_woken:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        await asyncio.sleep(max(0.0, began + GATHER_SECONDS - asyncio.get_running_loop().time()))
