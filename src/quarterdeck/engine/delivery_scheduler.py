"""Outgoing: how a process finds what is to be sent to somebody's endpoint, and how much of it it sends at once.

    a commit, a pause that is over, an interval ─► look ─► take ─► one errand for each of what was taken
                                                     │        │
              those for whom something is due, but   │        └ up to the slots that were kept for it
              not those that have all their slots ───┘

Every process has its own, and none of them is special: what is due is found by all, and given to one of them by the
lane it is taken through. Nothing is remembered here but who has which slots.

How it fails. What cannot be taken is left alone for an interval; while the database is away nothing is begun. Whoever
takes its time holds slots of its own, and nobody else's. A stopping process takes nothing new, waits for what is under
way as long as it may, and leaves the rest to the time that each attempt has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.fair_slots import FairSlots, SlotLimits, TargetRef
from quarterdeck.engine.background import Background
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.outgoing")
POLL_MAX = 100
"""Of those for whom something is due, one look finds so many at most."""
GAP_SECONDS = 0.005
QUIET_GAP_SECONDS = 0.05
"""Between two looks at least, however often it is woken: after one that found something, and after one that found
nothing. Every commit of every server wakes, and most have nothing to do with this."""
POLL_TIME_SHARE, QUIET_POLL_TIME_SHARE = 0.2, 0.05
"""Of the time, for looking: with ten thousand endpoints to look through, a look is no trifle."""
FAILED_GAP_SECONDS = 0.5
"""After one that failed."""
ExcludedTargets = Sequence[tuple[str, str | None]]
"""Whom a look passes over: without a name, all of a zone."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    label: str
    """What is sent, as it is said in the log: `pushes`."""
    limits: SlotLimits
    batch_max: int
    """How much is taken for one in one piece."""
    poll_seconds: float
    grace_seconds: float
    """For what is under way when the process stops."""


@dataclass(frozen=True, slots=True)
class WaitingTarget:
    """Somebody for whom something waits."""

    ref: TargetRef
    due_in_ms: Millis
    """Until it is due."""
    take: Callable[[TargetRef, int], Awaitable[int]]
    """Takes up to so many, and has each sent; how many these were."""


class DeliveryScheduler(ABC):
    def __init__(self, wakeups: Wakeups, config: SchedulerConfig) -> None:
        self._wakeups = wakeups
        self._config = config
        self._slots = FairSlots(config.limits)
        self._excluded_until: dict[TargetRef, float] = {}
        """For whom nothing could be taken, and until when nobody tries again."""
        self._wakeup = asyncio.Event()
        self._poll_task: asyncio.Task[None] | None = None
        self._background = Background(log)
        self._draining_since: float | None = None
        self.counts: Counter[str] = Counter()
        """Attempts, by what came of them."""

    @abstractmethod
    async def _find_waiting(self, excluded: ExcludedTargets) -> list[WaitingTarget]:
        """For whom something waits, up to LOOK_MAX of them, the earliest; without those that are `full`."""

    def __len__(self) -> int:
        """Attempts under way."""
        return len(self._slots)

    @property
    def is_draining(self) -> bool:
        return self._draining_since is not None

    def start(self) -> None:
        self._poll_task = asyncio.get_running_loop().create_task(self._run(), name=self._config.label)

    def drain(self) -> None:
        """Takes nothing new from here on."""
        if self._draining_since is None:
            self._draining_since = asyncio.get_running_loop().time()

    async def stop(self) -> None:
        """Returns when what was under way has come to its end, or has had its time."""
        self.drain()
        assert self._draining_since is not None
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.wait({self._poll_task})
        remaining = self._draining_since + self._config.grace_seconds - asyncio.get_running_loop().time()
        if cancelled := await self._background.stop(remaining):
            log.warning("%d %s were cut; they are tried again when their time is over", cancelled, self._config.label)

    # -- looking -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        unsubscribe = self._wakeups.subscribe(self._wakeup.set)
        loop = asyncio.get_running_loop()
        try:
            while not self.is_draining:
                started_at = loop.time()
                self._wakeup.clear()
                pause, gap = await self._try_poll()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wakeup.wait()
                await asyncio.sleep(max(0.0, started_at + gap - loop.time()))
        finally:
            unsubscribe()

    async def _try_poll(self) -> tuple[float, float]:
        """How long to rest, and how long at least."""
        try:
            return await self._poll()
        except StoreError as error:
            log.debug("cannot look for %s: %s", self._config.label, error)
        except Exception:  # nobody would notice the end of this task: nothing would be sent any more
            log.exception("looking for %s failed", self._config.label)
        return FAILED_GAP_SECONDS, FAILED_GAP_SECONDS

    async def _poll(self) -> tuple[float, float]:
        poll_seconds = self._config.poll_seconds
        if self._slots.is_full():
            # Whoever gives a slot back stirs.
            return poll_seconds, GAP_SECONDS
        started_at = asyncio.get_running_loop().time()
        found = await self._find_waiting(self._excluded_targets(started_at))
        elapsed = asyncio.get_running_loop().time() - started_at
        due = [each for each in found if each.due_in_ms <= 0]
        for target in due:
            self._start_take(target)
        if len(due) == POLL_MAX:
            self._wakeup.set()
        pause = min([poll_seconds, *(each.due_in_ms / 1000 for each in found if each.due_in_ms > 0)])
        gap, time_share = (GAP_SECONDS, POLL_TIME_SHARE) if due else (QUIET_GAP_SECONDS, QUIET_POLL_TIME_SHARE)
        return pause, min(max(min(gap, pause), elapsed / time_share), poll_seconds)

    def _excluded_targets(self, now: float) -> ExcludedTargets:
        self._excluded_until = {ref: until for ref, until in self._excluded_until.items() if until > now}
        zones: list[tuple[str, str | None]] = [(zone_id, None) for zone_id in self._slots.full_zones()]
        return [*zones, *self._slots.full_targets(), *self._excluded_until]

    # -- taking --------------------------------------------------------------------------------------------------

    def _start_take(self, target: WaitingTarget) -> None:
        """The slots are kept before anything is waited for, so that the next look leaves it alone."""
        if count := min(self._slots.available(target.ref), self._config.batch_max):
            self._slots.acquire(target.ref, count)
            self._background.start(self._take_from(target, count), f"{self._config.label} of {target.ref[1]}")

    async def _take_from(self, target: WaitingTarget, count: int) -> None:
        taken = 0
        try:
            taken = await target.take(target.ref, count)
        except Problem as problem:
            # It has gone, is not to be called any more, or the database is away: it may be otherwise in a while.
            log.debug("%s of %s cannot be taken: %r", self._config.label, target.ref[1], problem)
            self._excluded_until[target.ref] = asyncio.get_running_loop().time() + self._config.poll_seconds
        finally:
            self._slots.release(target.ref, count - taken)
            if taken == count:
                self._wakeup.set()

    def _start_send(self, ref: TargetRef, work: Coroutine[object, object, None], name: str) -> None:
        """Begins with one of what was taken. Its slot is free again when that has ended."""

        def on_done(_: asyncio.Task[None]) -> None:
            self._slots.release(ref, 1)
            self._wakeup.set()

        self._background.start(work, name).add_done_callback(on_done)
