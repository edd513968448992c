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

from quarterdeck.core.retry import Policy, backoff
from quarterdeck.sdk.errors import Fault, Invalid, Problem, TooLarge, Unauthenticated
from quarterdeck.sdk.types import ItemProblem
from quarterdeck.sdk.work_types import TaskItem

log = logging.getLogger("quarterdeck.sdk.invocation_worker")
E = TypeVar("E")
RETRY_POLICY = Policy(max_attempts=0, base_ms=100, cap_ms=10_000)
BATCH_MAX = 500
BYTES_MAX = 16 * 1024 * 1024
SENDERS = 2
SESSION_ENDED = "session_ended"
PERMANENT_PROBLEMS: Mapping[int | None, type[Problem]] = {kind.status: kind for kind in (Invalid, TooLarge)}
"""Of one word among many: the word itself is wrong, and its attempt is as it was before."""
ITEM_OVERHEAD_BYTES = 512
"""Bytes that one word about an attempt is taken to have beside what it carries."""


@dataclass(frozen=True, slots=True)
class OutboxCallbacks(Generic[E]):
    """How an outbox tells, and whom it tells what came of it."""

    send: Callable[[Sequence[E]], Awaitable[Sequence[TaskItem]]]
    on_reported: Callable[[E, ItemProblem | None], None]
    """For each that needs to be told no more: the problem says why it did not count."""
    on_refused: Callable[[E, Problem], None]
    """For each that the server will never take."""
    size: Callable[[E], int] = lambda report: 0


class Outbox(Generic[E]):
    def __init__(self, name: str, callbacks: OutboxCallbacks[E]) -> None:
        self._name = name
        self._callbacks: OutboxCallbacks[E] = callbacks
        self._waiting: deque[E] = deque()
        self._has_waiting = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._sending = 0

    def add(self, report: E) -> None:
        self._waiting.append(report)
        self._all_sent.clear()
        self._has_waiting.set()

    async def wait_until_sent(self) -> None:
        """Returns when everything has been told."""
        await self._all_sent.wait()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(self._run_sender())

    async def _run_sender(self) -> None:
        failures = 0
        while True:
            await self._has_waiting.wait()
            batch = self._take_batch()
            if not batch:
                self._has_waiting.clear()
                continue
            unsent: Sequence[E] = batch  # what is not heard of, for whatever reason, is not lost
            self._sending += 1
            try:
                unsent = await self._try_send(batch)
            finally:
                self._sending -= 1
                self._waiting.extendleft(reversed(unsent))
            if unsent:
                failures += 1
                self._has_waiting.set()
                await asyncio.sleep(backoff(RETRY_POLICY, attempt=failures, jitter=random.random()) / 1000)
            else:
                failures = 0
                if not self._waiting and not self._sending:
                    self._all_sent.set()

    def _take_batch(self) -> list[E]:
        if len(self._waiting) <= BATCH_MAX and self._fits_one_batch():
            batch = [*self._waiting]
            self._waiting.clear()
            return batch
        batch, size = [], 0
        while self._waiting and len(batch) < BATCH_MAX:
            size += ITEM_OVERHEAD_BYTES + self._callbacks.size(self._waiting[0])
            if batch and size > BYTES_MAX:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _fits_one_batch(self) -> bool:
        sizes = map(self._callbacks.size, self._waiting)
        return len(self._waiting) * ITEM_OVERHEAD_BYTES + sum(sizes) <= BYTES_MAX

    async def _try_send(self, batch: Sequence[E]) -> Sequence[E]:
        """Tells them; what must be told again."""
        try:
            return await self._send_batch(batch)
        except Problem as problem:
            if _is_retryable(problem):
                log.warning("%d %s cannot be told now and are kept: %s", len(batch), self._name, problem.detail)
                return batch
            # Whoever speaks so is not listened to any more; the claims are about to hear the same, and end the worker.
            log.error("%d %s are refused: %s", len(batch), self._name, problem.detail)
            for report in batch:
                self._callbacks.on_reported(report, ItemProblem(problem.code, problem.detail))
            return ()

    async def _send_batch(self, batch: Sequence[E]) -> list[E]:
        try:
            items = await self._callbacks.send(batch)
        except (Invalid, TooLarge) as refusal:
            return await self._send_halves(batch, refusal)
        return [report for report, item in zip(batch, items, strict=True) if self._needs_retry(report, item)]

    async def _send_halves(self, batch: Sequence[E], refusal: Problem) -> list[E]:
        if len(batch) > 1:
            half = len(batch) // 2
            return [*await self._send_batch(batch[:half]), *await self._send_batch(batch[half:])]
        self._callbacks.on_refused(batch[0], refusal)
        return []

    def _needs_retry(self, report: E, item: TaskItem) -> bool:
        problem = item.error
        if problem is not None and problem.passes:
            return True
        if problem is not None and (kind := PERMANENT_PROBLEMS.get(problem.status)):
            self._callbacks.on_refused(report, kind(problem.error, problem.detail))
        else:
            self._callbacks.on_reported(report, problem)
        return False


def _is_retryable(problem: Problem) -> bool:
    """A token that is no longer good may be renewed, also while the worker winds down, and what has been done is not to
    be done again for it. A session that has ended does not come back."""
    return isinstance(problem, Fault) or (isinstance(problem, Unauthenticated) and problem.code != SESSION_ENDED)
