"""What a task worker holds: attempts that wait for their turn, that run, and whose outcome is not told yet.

Functions are run by a few runners, each of which takes one attempt after another until none waits, and then ends. So a
hundred tasks whose functions return at once cost one `asyncio.Task` and not a hundred; a runner lets others have the
loop after some of them. All that run in one runner share its context variables.

Tasks are taken ahead only as far as they are begun soon: one that waits here could be done elsewhere meanwhile. How far
that is follows from how long functions take.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.sdk.task_worker.attempt import Attempt, ThreadAttempt
from quarterdeck.sdk.task_worker.handlers import Handler, Outcome, build_failure
from quarterdeck.sdk.work_types import TaskReturn

PREFETCH_SECONDS = 0.25
"""How soon what is taken ahead should begin."""
MEAN_WEIGHT = 0.05
"""Of the last function in how long functions take."""
YIELD_EVERY = 32
"""Attempts that one runner runs before others get the loop."""
RunAttempt = Callable[["HeldAttempt"], Coroutine[None, None, Outcome]]


class HeldAttempt:
    """One attempt."""

    __slots__ = ("attempt", "handler", "is_dropped", "runner", "token")

    def __init__(self, attempt: Attempt | ThreadAttempt, handler: Handler) -> None:
        self.attempt = attempt
        self.handler = handler
        self.token = attempt.lease.attempt_token
        self.runner: asyncio.Task[None] | None = None
        """While it runs."""
        self.is_dropped = False
        """Nobody wants to know what becomes of it."""

    def to_return(self) -> TaskReturn:
        return TaskReturn(self.attempt.lease.id, self.token)


@dataclass(frozen=True, slots=True)
class Limits:
    concurrency: int
    prefetch: int

    @property
    def total(self) -> int:
        return self.concurrency + self.prefetch


class InFlight:
    def __init__(self, limits: Limits, run: RunAttempt, on_ended: Callable[[Outcome, HeldAttempt], None]) -> None:
        self._limits = limits
        self._run = run
        self._on_ended = on_ended
        """Told what became of each that was not dropped."""
        self._held: dict[str, HeldAttempt] = {}
        self._waiting: deque[HeldAttempt] = deque()
        self._running: dict[HeldAttempt, None] = {}
        self._runners: set[asyncio.Task[None]] = set()
        self._mean_seconds: float | None = None
        self._requested = 0
        """For how many a claim is under way."""
        self._slot_freed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def task_ids(self) -> list[str]:
        return [held.attempt.lease.id for held in self._held.values()]

    async def wait_until_idle(self) -> None:
        """Returns when nothing is held."""
        await self._idle.wait()

    # -- taking and beginning --------------------------------------------------------------------------------------

    def free_slots(self, limit: int) -> int:
        """How many more are to be asked for now, up to `most`; 0 where it is better to wait."""
        free = self._limits.concurrency + self._prefetch_count() - len(self._held) - self._requested
        # While there is enough to do, many small claims would cost more than they bring.
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
        """While a claim for so many is under way, no other is made for the same room."""
        self._requested += count
        try:
            yield
        finally:
            self._requested -= count
            self._slot_freed.set()

    def add(self, attempts: Iterable[HeldAttempt]) -> None:
        for held in attempts:
            if held.token not in self._held:  # else given once more by a claim that was made once more
                self._held[held.token] = held
                self._waiting.append(held)
        if self._held:
            self._idle.clear()
        self._start_runners()

    def remove(self, token: str) -> None:
        self._held.pop(token, None)
        self._slot_freed.set()
        if not self._held:
            self._idle.set()

    def _prefetch_count(self) -> int:
        if self._mean_seconds is None:
            return 0
        startable = self._limits.concurrency * PREFETCH_SECONDS / max(self._mean_seconds, 1e-6)
        return min(self._limits.prefetch, int(startable))

    def _start_runners(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(len(self._waiting), self._limits.concurrency - len(self._runners))):
            runner = loop.create_task(self._run_waiting())
            self._runners.add(runner)
            runner.add_done_callback(self._on_runner_done)

    def _on_runner_done(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        # One that was dropped took its runner along, and there may be others to run.
        self._start_runners()

    async def _run_waiting(self) -> None:
        this_task, clock = asyncio.current_task(), asyncio.get_running_loop().time
        count = 0
        while self._waiting:
            held = self._waiting.popleft()
            held.runner = this_task
            self._running[held] = None
            started_at = clock()
            try:
                outcome = await self._run(held)
            except asyncio.CancelledError:
                if held.is_dropped or (this_task is not None and this_task.cancelling()):
                    raise
                # The function canceled itself, which is one way to fail.
                outcome = build_failure(held.attempt.lease, "the function was canceled")
            finally:
                held.runner = None
                self._running.pop(held, None)
            if not held.is_dropped:
                seconds = clock() - started_at
                self._mean_seconds = (
                    seconds
                    if self._mean_seconds is None
                    else self._mean_seconds + MEAN_WEIGHT * (seconds - self._mean_seconds)
                )
                self._on_ended(outcome, held)
            count += 1
            if count % YIELD_EVERY == 0:
                self._slot_freed.set()
                await asyncio.sleep(0)

    # -- letting go ------------------------------------------------------------------------------------------------

    def cancel(self, task_ids: Iterable[str], reason: str) -> None:
        """These are not wanted any more. What has not begun is dropped; what runs is told, and ends as it likes."""
        canceled_ids = set(task_ids)
        found = [held for held in self._held.values() if held.attempt.lease.id in canceled_ids]
        for held in found:
            held.attempt.cancel(reason)
        waiting = set(self._waiting)
        self._drop([held for held in found if held in waiting])

    def drop_waiting(self) -> list[TaskReturn]:
        """What has not begun, to be given back."""
        return self._drop(list(self._waiting))

    def drop_running(self) -> list[TaskReturn]:
        """What has not ended. Coroutines are canceled; threads are told, and nobody waits for them."""
        return self._drop(list(self._running))

    async def wait_until_none_running(self) -> None:
        while self._runners:
            await asyncio.wait(self._runners)

    def _drop(self, dropped: Sequence[HeldAttempt]) -> list[TaskReturn]:
        dropped_set = set(dropped)
        self._waiting = deque(held for held in self._waiting if held not in dropped_set)
        for held in dropped:
            held.is_dropped = True
            held.attempt.cancel("stopping")
            if held.runner is not None:
                held.runner.cancel()
            self.remove(held.token)
        return [held.to_return() for held in dropped]
