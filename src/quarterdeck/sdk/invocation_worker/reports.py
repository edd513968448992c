"""Reports the outcomes of attempts in batches. Outcomes that accumulate during one call are sent in the next.

There are no timers: an idle reporter sends immediately. Outcomes that could not be sent are retried for as long as the
worker runs. A worker that cannot report keeps its leases, so it claims nothing new.

If the server refuses a batch because of one result (a character that cannot be stored, too many bytes), the reporter
finds that result by halving the batch. It reports the attempt as failed, with the reason. The other outcomes are not
affected.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from quarterdeck.core.retry import Policy, backoff
from quarterdeck.sdk.errors import Fault, Invalid, Problem, TooLarge, Unauthenticated
from quarterdeck.sdk.invocations import Invocations
from quarterdeck.sdk.types import BULK_MAX, Completion, Item

log = logging.getLogger("quarterdeck.sdk.worker")
BATCH_MAX_BYTES = 220 * 1024
RETRY_POLICY = Policy(max_attempts=0, base_ms=100, cap_ms=10_000)
RESULT_REFUSED = "result_refused"
SESSION_ENDED = "session_ended"


class Reporter:
    def __init__(self, invocations: Invocations, on_reported: Callable[[Completion], None]) -> None:
        self._invocations = invocations
        self._on_reported = on_reported
        """Called for each outcome that need not be sent again, even if it did not count."""
        self._waiting: deque[Completion] = deque()
        self._has_waiting = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()

    def add(self, completion: Completion) -> None:
        self._waiting.append(completion)
        self._all_sent.clear()
        self._has_waiting.set()

    async def wait_until_sent(self) -> None:
        """Wait until all outcomes are reported."""
        await self._all_sent.wait()

    async def run(self) -> None:
        failures = 0
        while True:
            await self._has_waiting.wait()
            batch = self._take_batch()
            if not batch:
                self._has_waiting.clear()
                self._all_sent.set()
                continue
            unsent = await self._try_send(batch)
            if not unsent:
                failures = 0
                continue
            failures += 1
            self._waiting.extendleft(reversed(unsent))
            await asyncio.sleep(backoff(RETRY_POLICY, attempt=failures, jitter=random.random()) / 1000)

    def _take_batch(self) -> list[Completion]:
        batch: list[Completion] = []
        size_bytes = 0
        while self._waiting and len(batch) < BULK_MAX:
            size_bytes += len(msgspec.json.encode(self._waiting[0]))
            if batch and size_bytes > BATCH_MAX_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _try_send(self, batch: Sequence[Completion]) -> Sequence[Completion]:
        """Send a batch. Returns the outcomes that must be sent again."""
        try:
            return await self._send(batch)
        except Problem as problem:
            if _is_retryable(problem):
                log.warning("cannot report %d outcomes now, retrying: %s", len(batch), problem.detail)
                return batch
            # The server refuses this worker. The next claim is refused too, and that ends the worker.
            log.error("the server refused %d outcomes: %s", len(batch), problem.detail)
            for completion in batch:
                self._on_reported(completion)
            return ()

    async def _send(self, batch: Sequence[Completion]) -> list[Completion]:
        try:
            items = await self._invocations.complete(batch)
        except (Invalid, TooLarge) as refusal:
            return await self._send_halves(batch, refusal)
        outcomes = {item.id: item for item in items}
        return [completion for completion in batch if self._needs_retry(completion, outcomes)]

    async def _send_halves(self, batch: Sequence[Completion], refusal: Problem) -> list[Completion]:
        if len(batch) > 1:
            half = len(batch) // 2
            return [*await self._send(batch[:half]), *await self._send(batch[half:])]
        [completion] = batch
        if completion.error is not None and completion.error.get("code") == RESULT_REFUSED:
            log.error("the outcome of %s cannot be reported: %s", completion.id, refusal.detail)
            self._on_reported(completion)
            return []
        error: dict[str, object] = {
            "code": RESULT_REFUSED,
            "message": f"{completion.status}, but refused: {refusal.detail}",
        }
        replacement = Completion(completion.id, completion.attempt_token, "failed", error=error, retryable=False)
        return await self._send([replacement])

    def _needs_retry(self, completion: Completion, outcomes: dict[str, Item]) -> bool:
        item = outcomes.get(completion.id)
        problem = None if item is None else item.error
        if problem is not None and problem.is_temporary:
            return True
        if problem is not None:
            # The lease expired, the invocation was canceled, or an earlier report counted and its response was lost.
            log.warning("the outcome of %s does not count: %s", completion.id, problem.detail)
        self._on_reported(completion)
        return False


def _is_retryable(problem: Problem) -> bool:
    """Whether sending again may help.

    An invalid token may be renewed, even during shutdown, and finished work should not be lost until then. An ended
    session cannot be revived.
    """
    return isinstance(problem, Fault) or (isinstance(problem, Unauthenticated) and problem.code != SESSION_ENDED)
