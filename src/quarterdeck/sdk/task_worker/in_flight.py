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
from quarterdeck.sdk.task_worker.handlers import Handler, Outcome, failed
from quarterdeck.sdk.work_types import TaskReturn

AHEAD_SECONDS = 0.25
"""How soon what is taken ahead should begin."""
SHARE = 0.05
"""Of the last function in how long functions take."""
TURN = 32
"""Attempts that one runner runs before others get the loop."""
Run = Callable[["Held"], Coroutine[None, None, Outcome]]


class Held:
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

    def given_back(self) -> TaskReturn:
        return TaskReturn(self.attempt.lease.id, self.token)


@dataclass(frozen=True, slots=True)
class Limits:
    concurrency: int
    prefetch: int

    @property
    def most(self) -> int:
        return self.concurrency + self.prefetch


class Holdings:
    def __init__(self, limits: Limits, run: Run, ended: Callable[[Outcome, Held], None]) -> None:
        self._limits = limits
        self._run = run
        self._ended = ended
        """Told what became of each that was not dropped."""
        self._held: dict[str, Held] = {}
        self._waiting: deque[Held] = deque()
        self._running: dict[Held, None] = {}
        self._runners: set[asyncio.Task[None]] = set()
        self._mean: float | None = None
        self._asked = 0
        """For how many a claim is under way."""
        self._freed = asyncio.Event()
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

    async def until_idle(self) -> None:
        """Returns when nothing is held."""
        await self._idle.wait()

    # -- taking and beginning --------------------------------------------------------------------------------------

    def room(self, most: int) -> int:
        """How many more are to be asked for now, up to `most`; 0 where it is better to wait."""
        room = self._limits.concurrency + self._ahead() - len(self._held) - self._asked
        # While there is enough to do, many small claims would cost more than they bring.
        if self._waiting and room < min(most, self._limits.most // 4):
            return 0
        return max(0, min(room, most))

    async def until_room(self, most: int) -> int:
        while (room := self.room(most)) <= 0:
            self._freed.clear()
            await self._freed.wait()
        return room

    @contextlib.contextmanager
    def asking_for(self, number: int) -> Iterator[None]:
        """While a claim for so many is under way, no other is made for the same room."""
        self._asked += number
        try:
            yield
        finally:
            self._asked -= number
            self._freed.set()

    def take(self, taken: Iterable[Held]) -> None:
        for held in taken:
            if held.token not in self._held:  # else given once more by a claim that was made once more
                self._held[held.token] = held
                self._waiting.append(held)
        if self._held:
            self._idle.clear()
        self._fill()

    def forget(self, token: str) -> None:
        self._held.pop(token, None)
        self._freed.set()
        if not self._held:
            self._idle.set()

    def _ahead(self) -> int:
        if self._mean is None:
            return 0
        soon = self._limits.concurrency * AHEAD_SECONDS / max(self._mean, 1e-6)
        return min(self._limits.prefetch, int(soon))

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(len(self._waiting), self._limits.concurrency - len(self._runners))):
            runner = loop.create_task(self._run_some())
            self._runners.add(runner)
            runner.add_done_callback(self._runner_ended)

    def _runner_ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        # One that was dropped took its runner along, and there may be others to run.
        self._fill()

    async def _run_some(self) -> None:
        own, clock = asyncio.current_task(), asyncio.get_running_loop().time
        turn = 0
        while self._waiting:
            held = self._waiting.popleft()
            held.runner = own
            self._running[held] = None
            began = clock()
            try:
                outcome = await self._run(held)
            except asyncio.CancelledError:
                if held.is_dropped or (own is not None and own.cancelling()):
                    raise
                # The function canceled itself, which is one way to fail.
                outcome = failed(held.attempt.lease, "the function was canceled")
            finally:
                held.runner = None
                self._running.pop(held, None)
            if not held.is_dropped:
                took = clock() - began
                self._mean = took if self._mean is None else self._mean + SHARE * (took - self._mean)
                self._ended(outcome, held)
            turn += 1
            if turn % TURN == 0:
                self._freed.set()
                await asyncio.sleep(0)

    # -- letting go ------------------------------------------------------------------------------------------------

    def cancel(self, task_ids: Iterable[str], why: str) -> None:
        """These are not wanted any more. What has not begun is dropped; what runs is told, and ends as it likes."""
        wanted = set(task_ids)
        found = [held for held in self._held.values() if held.attempt.lease.id in wanted]
        for held in found:
            held.attempt.cancel(why)
        waiting = set(self._waiting)
        self._drop([held for held in found if held in waiting])

    def drop_waiting(self) -> list[TaskReturn]:
        """What has not begun, to be given back."""
        return self._drop(list(self._waiting))

    def drop_running(self) -> list[TaskReturn]:
        """What has not ended. Coroutines are canceled; threads are told, and nobody waits for them."""
        return self._drop(list(self._running))

    async def until_none_runs(self) -> None:
        while self._runners:
            await asyncio.wait(self._runners)

    def _drop(self, dropped: Sequence[Held]) -> list[TaskReturn]:
        gone = set(dropped)
        self._waiting = deque(held for held in self._waiting if held not in gone)
        for held in dropped:
            held.is_dropped = True
            held.attempt.cancel("stopping")
            if held.runner is not None:
                held.runner.cancel()
            self.forget(held.token)
        return [held.given_back() for held in dropped]
