"""Finds due deliveries to external endpoints and limits how many run at once.

    a commit, a due time, an interval ─► poll ─► take ─► one background task per taken delivery
                                           │       │
              targets with due deliveries, │       └ up to the slots that were acquired for it
              except those without slots ──┘

Every process runs a scheduler, and every scheduler finds all due deliveries. The lane through which deliveries are
taken gives each delivery to one process. A scheduler keeps no state except the slots in use and the targets to skip.

How it fails. A target whose deliveries cannot be taken is skipped for an interval. While the database is not reachable,
nothing is started. A slow target uses only its own slots. A process that is stopping takes nothing new, waits for
running attempts within its grace period, and cancels the remaining ones, which are retried after their timeouts.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.fair_slots import FairSlots, SlotLimits, TargetRef
from quarterdeck.engine.background import Background, BackgroundLoop, wait_at_most
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.deliveries")
POLL_MAX = 100
"""The maximum number of targets that one poll finds."""
GAP_SECONDS = 0.005
QUIET_GAP_SECONDS = 0.05
"""The minimum time between two polls, however often the scheduler is woken: after a poll that found due deliveries, and
after one that found none. Every commit of every server wakes the scheduler, and most have nothing to do with
deliveries."""
POLL_TIME_SHARE, QUIET_POLL_TIME_SHARE = 0.2, 0.05
"""The maximum share of time spent polling, in the same two cases. With 10,000 endpoints, a poll is expensive."""
FAILED_GAP_SECONDS = 0.5
"""The pause after a failed poll."""
ExcludedTargets = Sequence[tuple[str, str | None]]
"""Targets that a poll skips: (zone id, target id), or (zone id, None) for all targets of a zone."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    label: str
    """What is delivered, for log messages, such as `pushes`."""
    limits: SlotLimits
    batch_max: int
    """The maximum number of deliveries to one target that are taken at once."""
    poll_seconds: float
    grace_seconds: float
    """How long running attempts may continue when the process stops."""


@dataclass(frozen=True, slots=True)
class WaitingTarget:
    """A target with pending deliveries."""

    ref: TargetRef
    due_in_ms: Millis
    """The time until its first delivery is due; 0 or less if it is due now."""
    take: Callable[[TargetRef, int], Awaitable[int]]
    """Takes up to the given number of deliveries to the target and starts sending each. Returns how many it took."""


class DeliveryScheduler(BackgroundLoop):
    def __init__(self, wakeups: Wakeups, config: SchedulerConfig) -> None:
        super().__init__(config.label)
        self._wakeups = wakeups
        self._config = config
        self._slots = FairSlots(config.limits)
        self._excluded_until: dict[TargetRef, float] = {}
        """Targets whose deliveries could not be taken, and until when they are skipped, on the event loop's clock."""
        self._wakeup = asyncio.Event()
        self._background = Background(log)
        self._draining_since: float | None = None
        self.counts: Counter[str] = Counter()
        """Attempts by outcome."""

    @abstractmethod
    async def _find_waiting(self, excluded: ExcludedTargets) -> list[WaitingTarget]:
        """Targets with pending deliveries, earliest first, at most `POLL_MAX`, except those in `excluded`."""

    def __len__(self) -> int:
        """The slots in use: one per running attempt, and those acquired for deliveries that are being taken."""
        return len(self._slots)

    @property
    def is_draining(self) -> bool:
        return self._draining_since is not None

    def drain(self) -> None:
        """Take nothing new from now on."""
        if self._draining_since is None:
            self._draining_since = asyncio.get_running_loop().time()

    async def stop(self) -> None:
        """Wait until running attempts have ended, or the grace period has passed."""
        self.drain()
        assert self._draining_since is not None
        await super().stop()
        remaining = self._draining_since + self._config.grace_seconds - asyncio.get_running_loop().time()
        if cancelled := await self._background.stop(remaining):
            log.warning("canceled %d %s at shutdown; they are retried later", cancelled, self._config.label)

    # -- polling -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with self._wakeups.subscribed(self._wakeup.set):
            while not self.is_draining:
                started_at = loop.time()
                self._wakeup.clear()
                pause, gap = await self._try_poll()
                await wait_at_most(pause, self._wakeup.wait())
                await asyncio.sleep(max(0.0, started_at + gap - loop.time()))

    async def _try_poll(self) -> tuple[float, float]:
        """Poll once. Return how long to wait for a wake-up, and the minimum time between two polls, in seconds."""
        try:
            return await self._poll()
        except StoreError as error:
            log.debug("cannot poll for %s: %s", self._config.label, error)
        except Exception:  # broad, because the end of this task would go unnoticed: nothing more would be sent
            log.exception("polling for %s failed", self._config.label)
        return FAILED_GAP_SECONDS, FAILED_GAP_SECONDS

    async def _poll(self) -> tuple[float, float]:
        poll_seconds = self._config.poll_seconds
        if self._slots.is_full():
            # The release of a slot wakes the scheduler.
            return poll_seconds, GAP_SECONDS
        started_at = asyncio.get_running_loop().time()
        targets = await self._find_waiting(self._excluded_targets(started_at))
        elapsed = asyncio.get_running_loop().time() - started_at
        due_targets = [target for target in targets if target.due_in_ms <= 0]
        for target in due_targets:
            self._start_take(target)
        if len(due_targets) == POLL_MAX:
            self._wakeup.set()
        pause = min([poll_seconds, *(target.due_in_ms / 1000 for target in targets if target.due_in_ms > 0)])
        gap, time_share = (GAP_SECONDS, POLL_TIME_SHARE) if due_targets else (QUIET_GAP_SECONDS, QUIET_POLL_TIME_SHARE)
        return pause, min(max(min(gap, pause), elapsed / time_share), poll_seconds)

    def _excluded_targets(self, now: float) -> ExcludedTargets:
        self._excluded_until = {ref: until for ref, until in self._excluded_until.items() if until > now}
        zones: list[tuple[str, str | None]] = [(zone_id, None) for zone_id in self._slots.full_zones()]
        return [*zones, *self._slots.full_targets(), *self._excluded_until]

    # -- taking --------------------------------------------------------------------------------------------------

    def _start_take(self, target: WaitingTarget) -> None:
        """Take deliveries to a target in the background. The slots are acquired here, before the first await, so that
        the next poll does not use them again."""
        if count := min(self._slots.available(target.ref), self._config.batch_max):
            self._slots.acquire(target.ref, count)
            self._background.start(self._take_from(target, count), f"{self._config.label} to {target.ref[1]}")

    async def _take_from(self, target: WaitingTarget, count: int) -> None:
        taken_count = 0
        try:
            taken_count = await target.take(target.ref, count)
        except Problem as problem:
            # The target has ended or must no longer be called, or the database is not reachable. Retry later.
            log.debug("cannot take %s to %s: %r", self._config.label, target.ref[1], problem)
            self._excluded_until[target.ref] = asyncio.get_running_loop().time() + self._config.poll_seconds
        finally:
            self._slots.release(target.ref, count - taken_count)
            if taken_count == count:
                self._wakeup.set()

    def _start_send(self, ref: TargetRef, work: Coroutine[object, object, None], name: str) -> None:
        """Start sending one delivery that was taken. Its slot is released when the attempt has ended."""

        def on_done(_: asyncio.Task[None]) -> None:
            self._slots.release(ref, 1)
            self._wakeup.set()

        self._background.start(work, name).add_done_callback(on_done)
