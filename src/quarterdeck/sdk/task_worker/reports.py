"""What became of attempts, told in batches: whatever has gathered since the last report goes with the next.

There are no timers: an idle outbox tells at once, and a busy one takes what has gathered. Two reports may be under way
at once, so that the server works on one while the other is on its way. What could not be told is told again, for as
long as the worker runs. A worker that cannot tell anything goes on holding its tasks, and so takes nothing new.

What the server does not take (a key that is its own, too many bytes) it names, or, where it cannot read the whole for
it (a character that no database stores), it is found by halving its batch; its neighbours lose nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from quarterdeck.core.retry import Policy, delay
from quarterdeck.sdk.errors import Fault, Invalid, Problem, TooLarge, Unauthenticated
from quarterdeck.sdk.types import ItemProblem
from quarterdeck.sdk.work_types import TaskItem

log = logging.getLogger("quarterdeck.sdk.invocation_worker")
E = TypeVar("E")
AGAIN = Policy(max_attempts=0, base_ms=100, cap_ms=10_000)
BATCH_MAX = 500
BYTES_MAX = 16 * 1024 * 1024
SENDERS = 2
SESSION_ENDED = "session_ended"
NEVER_TAKEN: Mapping[int | None, type[Problem]] = {kind.status: kind for kind in (Invalid, TooLarge)}
"""Of one word among many: the word itself is wrong, and its attempt is as it was before."""
SMALL = 512
"""Bytes that one word about an attempt is taken to have beside what it carries."""


@dataclass(frozen=True, slots=True)
class Ways(Generic[E]):
    """How an outbox tells, and whom it tells what came of it."""

    send: Callable[[Sequence[E]], Awaitable[Sequence[TaskItem]]]
    heard: Callable[[E, ItemProblem | None], None]
    """For each that needs to be told no more: the problem says why it did not count."""
    refused: Callable[[E, Problem], None]
    """For each that the server will never take."""
    size: Callable[[E], int] = lambda said: 0


class Outbox(Generic[E]):
    def __init__(self, name: str, ways: Ways[E]) -> None:
        self._name = name
        self._ways: Ways[E] = ways
        self._waiting: deque[E] = deque()
        self._news = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._sending = 0

    def add(self, said: E) -> None:
        self._waiting.append(said)
        self._quiet.clear()
        self._news.set()

    async def until_quiet(self) -> None:
        """Returns when everything has been told."""
        await self._quiet.wait()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(self._send())

    async def _send(self) -> None:
        failures = 0
        while True:
            await self._news.wait()
            batch = self._take()
            if not batch:
                self._news.clear()
                continue
            again: Sequence[E] = batch  # what is not heard of, for whatever reason, is not lost
            self._sending += 1
            try:
                again = await self._try(batch)
            finally:
                self._sending -= 1
                self._waiting.extendleft(reversed(again))
            if again:
                failures += 1
                self._news.set()
                await asyncio.sleep(delay(AGAIN, attempt=failures, chance=random.random()) / 1000)
            else:
                failures = 0
                if not self._waiting and not self._sending:
                    self._quiet.set()

    def _take(self) -> list[E]:
        if len(self._waiting) <= BATCH_MAX and self._is_small():
            batch = [*self._waiting]
            self._waiting.clear()
            return batch
        batch, size = [], 0
        while self._waiting and len(batch) < BATCH_MAX:
            size += SMALL + self._ways.size(self._waiting[0])
            if batch and size > BYTES_MAX:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _is_small(self) -> bool:
        sizes = map(self._ways.size, self._waiting)
        return len(self._waiting) * SMALL + sum(sizes) <= BYTES_MAX

    async def _try(self, batch: Sequence[E]) -> Sequence[E]:
        """Tells them; what must be told again."""
        try:
            return await self._tell(batch)
        except Problem as problem:
            if _may_pass(problem):
                log.warning("%d %s cannot be told now and are kept: %s", len(batch), self._name, problem.detail)
                return batch
            # Whoever speaks so is not listened to any more; the claims are about to hear the same, and end the worker.
            log.error("%d %s are refused: %s", len(batch), self._name, problem.detail)
            for said in batch:
                self._ways.heard(said, ItemProblem(problem.code, problem.detail))
            return ()

    async def _tell(self, batch: Sequence[E]) -> list[E]:
        try:
            items = await self._ways.send(batch)
        except (Invalid, TooLarge) as refusal:
            return await self._tell_apart(batch, refusal)
        return [said for said, item in zip(batch, items, strict=True) if self._must_be_told_again(said, item)]

    async def _tell_apart(self, batch: Sequence[E], refusal: Problem) -> list[E]:
        if len(batch) > 1:
            half = len(batch) // 2
            return [*await self._tell(batch[:half]), *await self._tell(batch[half:])]
        self._ways.refused(batch[0], refusal)
        return []

    def _must_be_told_again(self, said: E, item: TaskItem) -> bool:
        problem = item.error
        if problem is not None and problem.passes:
            return True
        if problem is not None and (kind := NEVER_TAKEN.get(problem.status)):
            self._ways.refused(said, kind(problem.error, problem.detail))
        else:
            self._ways.heard(said, problem)
        return False


def _may_pass(problem: Problem) -> bool:
    """A token that is no longer good may be renewed, also while the worker winds down, and what has been done is not to
    be done again for it. A session that has ended does not come back."""
    return isinstance(problem, Fault) or (isinstance(problem, Unauthenticated) and problem.code != SESSION_ENDED)
