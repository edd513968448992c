"""Reports outcomes and progress of attempts in batches. Reports that accumulate during one call are sent in the next.

There are no timers: an idle outbox sends immediately. With two senders, the server can work on one call while the other
is being sent. Reports that could not be sent are retried for as long as the worker runs. A worker that
cannot report keeps its attempts, so it claims nothing new.

The server names each report that it refuses (a reserved key, too many bytes). If the server refuses the whole batch
because of one report (a character that cannot be stored), the outbox finds that report by halving the batch. The other
reports are not affected.
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
from quarterdeck.sdk.types import Item, ItemProblem
from quarterdeck.sdk.work_types import TaskItem

log = logging.getLogger("quarterdeck.sdk.worker")
E = TypeVar("E")
RETRY_POLICY = Policy(max_attempts=0, base_ms=100, cap_ms=10_000)
SESSION_ENDED = "session_ended"
PERMANENT_PROBLEMS: Mapping[int | None, type[Problem]] = {
    problem_type.status: problem_type for problem_type in (Invalid, TooLarge)
}
"""Problem types by the item status for which the report itself is invalid. The attempt is then unchanged."""
ITEM_OVERHEAD_BYTES = 512
"""Estimated bytes of a report in addition to its content."""


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """Limits of the calls that an outbox makes."""

    reports: int = 500
    bytes: int = 16 * 1024 * 1024
    senders: int = 2
    """Calls in transit at the same time."""


@dataclass(frozen=True, slots=True)
class OutboxCallbacks(Generic[E]):
    """The functions that an outbox calls to send reports and to handle the results."""

    send: Callable[[Sequence[E]], Awaitable[Sequence[Item | TaskItem]]]
    """Returns one reply for each report, in the same order."""
    on_reported: Callable[[E, ItemProblem | None], None]
    """Called for each report that need not be sent again. The problem, if any, is the reason why it did not count."""
    on_refused: Callable[[E, Problem], None]
    """Called for each report that the server refuses permanently."""
    size: Callable[[E], int] = lambda report: 0
    """The size of a report's content in bytes."""


class Outbox(Generic[E]):
    def __init__(self, name: str, callbacks: OutboxCallbacks[E], limits: OutboxLimits | None = None) -> None:
        self._name = name
        self._callbacks: OutboxCallbacks[E] = callbacks
        self._limits = limits or OutboxLimits()
        self._waiting: deque[E] = deque()
        self._has_waiting = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._sending_count = 0

    def add(self, report: E) -> None:
        self._waiting.append(report)
        self._all_sent.clear()
        self._has_waiting.set()

    async def wait_until_sent(self) -> None:
        """Wait until all reports are sent."""
        await self._all_sent.wait()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as senders:
            for _ in range(self._limits.senders):
                senders.create_task(self._run_sender())

    async def _run_sender(self) -> None:
        failures = 0
        while True:
            await self._has_waiting.wait()
            batch = self._take_batch()
            if not batch:
                self._has_waiting.clear()
                continue
            unsent: Sequence[E] = batch  # if anything raises, the batch returns to the queue
            self._sending_count += 1
            try:
                unsent = await self._try_send(batch)
            finally:
                self._sending_count -= 1
                self._waiting.extendleft(reversed(unsent))
            if unsent:
                failures += 1
                self._has_waiting.set()
                await asyncio.sleep(backoff(RETRY_POLICY, attempt=failures, jitter=random.random()) / 1000)
            else:
                failures = 0
                if not self._waiting and not self._sending_count:
                    self._all_sent.set()

    def _take_batch(self) -> list[E]:
        if len(self._waiting) <= self._limits.reports and self._fits_one_batch():
            batch = [*self._waiting]
            self._waiting.clear()
            return batch
        batch, size = [], 0
        while self._waiting and len(batch) < self._limits.reports:
            size += ITEM_OVERHEAD_BYTES + self._callbacks.size(self._waiting[0])
            if batch and size > self._limits.bytes:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _fits_one_batch(self) -> bool:
        sizes = map(self._callbacks.size, self._waiting)
        return len(self._waiting) * ITEM_OVERHEAD_BYTES + sum(sizes) <= self._limits.bytes

    async def _try_send(self, batch: Sequence[E]) -> Sequence[E]:
        """Send a batch. Returns the reports that must be sent again."""
        try:
            return await self._send_batch(batch)
        except Problem as problem:
            if _is_retryable(problem):
                log.warning("cannot report %d %s now, retrying: %s", len(batch), self._name, problem.detail)
                return batch
            # The server refuses this worker. The next claim is refused too, and that ends the worker.
            log.error("the server refused %d %s: %s", len(batch), self._name, problem.detail)
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

    def _needs_retry(self, report: E, item: Item | TaskItem) -> bool:
        problem = item.error
        if problem is not None and problem.is_temporary:
            return True
        if problem is not None and (problem_type := PERMANENT_PROBLEMS.get(problem.status)):
            self._callbacks.on_refused(report, problem_type(problem.error, problem.detail))
        else:
            self._callbacks.on_reported(report, problem)
        return False


def storable_text(text: str) -> str:
    """The text without lone surrogates and U+0000, which the server refuses."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def _is_retryable(problem: Problem) -> bool:
    """Whether sending again may help.

    An invalid token may be renewed, even during shutdown, and finished work should not be lost until then. An ended
    session cannot be revived.
    """
    return isinstance(problem, Fault) or (isinstance(problem, Unauthenticated) and problem.code != SESSION_ENDED)
