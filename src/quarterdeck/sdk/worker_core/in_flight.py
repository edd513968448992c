"""The attempts that a worker holds: waiting, running, or ended and not yet reported.

Functions run in runners. A runner takes one attempt after another until none is waiting, and then ends. So 100 attempts
need at most `concurrency` instances of `asyncio.Task`, not 100. A runner yields to the event loop after 32 attempts.
All attempts of one runner share its context variables.

The worker prefetches only what will start soon, because another worker could run an attempt that is waiting here. The
mean duration of functions determines how many attempts are prefetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")
H = TypeVar("H", bound="HeldAttempt")
PREFETCH_SECONDS = 0.25
"""Attempts are prefetched only if they are expected to start within this time."""
YIELD_EVERY = 32
"""Attempts after which a runner yields to the event loop."""


class HeldAttempt:
    """An attempt in progress. Each worker has its own subclass."""

    __slots__ = ("has_ended", "id", "is_dropped", "runner", "token")

    def __init__(self, id: str, token: str) -> None:
        self.id = id
        self.token = token
        self.runner: asyncio.Task[None] | None = None
        """Set while the attempt is running."""
        self.has_ended = False
        """The function has ended. The outcome may not be reported yet."""
        self.is_dropped = False
        """The outcome will not be reported."""

    def cancel(self, reason: str) -> None:
        """Notify the function."""


@dataclass(frozen=True, slots=True)
class Limits:
    concurrency: int
    prefetch: int
    mean_weight: float = 0.05
    """Weight of the latest function in the moving average of durations."""

    @property
    def total(self) -> int:
        return self.concurrency + self.prefetch


class InFlight(Generic[H, R]):
    def __init__(
        self, limits: Limits, run: Callable[[H], Coroutine[None, None, R]], on_ended: Callable[[R, H], None]
    ) -> None:
        self._limits = limits
        self._run: Callable[[H], Coroutine[None, None, R]] = run
        self._on_ended: Callable[[R, H], None] = on_ended
        """Called with the outcome of each attempt that was not dropped."""
        self._held: dict[str, H] = {}
        self._waiting: deque[H] = deque()
        self._running: dict[H, None] = {}
        self._runners: set[asyncio.Task[None]] = set()
        self._mean_seconds: float | None = None
        self._requested_count = 0
        """Attempts that claims in transit have requested."""
        self._slot_freed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._not_idle = asyncio.Event()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def held(self) -> list[H]:
        return [*self._held.values()]

    @property
    def waiting(self) -> list[H]:
        return [*self._waiting]

    def is_held(self, attempt: H) -> bool:
        return attempt.token in self._held

    async def wait_until_held(self) -> None:
        """Wait until an attempt is held."""
        await self._not_idle.wait()

    async def wait_until_idle(self) -> None:
        """Wait until no attempt is held."""
        await self._idle.wait()

    # -- slots and starts ------------------------------------------------------------------------------------------

    def free_slots(self, limit: int) -> int:
        """How many more attempts to claim now, up to `limit`. 0 if it is better to wait."""
        free = self._limits.concurrency + self._prefetch_count() - len(self._held) - self._requested_count
        # While attempts are still waiting here, a small claim costs more than it gains.
        if self._waiting and free < min(limit, self._limits.total // 4):
            return 0
        return max(0, min(free, limit))

    async def wait_for_slots(self, limit: int) -> int:
        while (free := self.free_slots(limit)) <= 0:
            self._slot_freed.clear()
            await self._slot_freed.wait()
        return free

    @contextlib.contextmanager
    def reserve_slots(self, count: int) -> Iterator[None]:
        """Reserve slots while a claim is in transit, so that no other claim uses them."""
        self._requested_count += count
        try:
            yield
        finally:
            self._requested_count -= count
            self._slot_freed.set()

    def add(self, attempts: Iterable[H]) -> None:
        for held in attempts:
            if held.token not in self._held:  # a repeated claim may return it again
                self._held[held.token] = held
                self._waiting.append(held)
        if self._held:
            self._idle.clear()
            self._not_idle.set()
        self._start_runners()

    def remove(self, token: str) -> None:
        self._held.pop(token, None)
        self._slot_freed.set()
        if not self._held:
            self._idle.set()
            self._not_idle.clear()

    def _prefetch_count(self) -> int:
        if self._mean_seconds is None:
            return 0
        startable_count = self._limits.concurrency * PREFETCH_SECONDS / max(self._mean_seconds, 1e-6)
        return min(self._limits.prefetch, int(startable_count))

    def _start_runners(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(len(self._waiting), self._limits.concurrency - len(self._runners))):
            runner = loop.create_task(self._run_waiting())
            self._runners.add(runner)
            runner.add_done_callback(self._on_runner_done)

    def _on_runner_done(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        # Dropping an attempt cancels its runner, and other attempts may still be waiting.
        self._start_runners()

    async def _run_waiting(self) -> None:
        this_task, clock = asyncio.current_task(), asyncio.get_running_loop().time
        assert this_task is not None
        count, context = 0, contextvars.copy_context()
        # A function that cancels its own asyncio task ends this runner, and so does one that sets a context variable,
        # which the next attempt must not see. Another runner continues.
        while self._waiting and not this_task.cancelling() and contextvars.copy_context() == context:
            held = self._waiting.popleft()
            held.runner = this_task
            self._running[held] = None
            started_at = clock()
            try:
                outcome = await self._run(held)
            finally:
                held.runner = None
                held.has_ended = True
                self._running.pop(held, None)
            if not held.is_dropped:
                self.record_duration(clock() - started_at)
                self._on_ended(outcome, held)
            count += 1
            if count % YIELD_EVERY == 0:
                self._slot_freed.set()
                await asyncio.sleep(0)

    def record_duration(self, seconds: float) -> None:
        """Include the duration of a function in the mean that determines how many attempts are prefetched."""
        mean_seconds = seconds if self._mean_seconds is None else self._mean_seconds
        self._mean_seconds = mean_seconds + self._limits.mean_weight * (seconds - mean_seconds)

    # -- drops -----------------------------------------------------------------------------------------------------

    def cancel(self, ids: Iterable[str], reason: str) -> None:
        """Cancel these attempts. Waiting ones are dropped. Running ones are notified, and end on their own."""
        canceled_ids = set(ids)
        canceled = [held for held in self._held.values() if held.id in canceled_ids]
        for held in canceled:
            held.cancel(reason)
        waiting = set(self._waiting)
        self.drop([held for held in canceled if held in waiting])

    def drop_waiting(self) -> list[H]:
        """Drop the attempts that have not started. Returns them, so that they can be given back."""
        return self.drop(list(self._waiting))

    def drop_running(self) -> list[H]:
        """Drop the running attempts. Cancels coroutines. Notifies threads, but does not wait for them."""
        return self.drop(list(self._running))

    async def wait_until_none_running(self) -> None:
        while self._runners:
            await asyncio.wait(self._runners)

    def drop(self, dropped: Sequence[H]) -> list[H]:
        """Stop these attempts without a report. Returns them, so that they can be given back."""
        dropped_set = set(dropped)
        self._waiting = deque(held for held in self._waiting if held not in dropped_set)
        for held in dropped:
            held.is_dropped = True
            held.cancel("stopping")
            if held.runner is not None:
                held.runner.cancel()
            self.remove(held.token)
        return [*dropped]
