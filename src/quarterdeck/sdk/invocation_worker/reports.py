"""What became of attempts, told in batches: whatever has finished since the last report goes with the next.

There are no timers: an idle reporter tells at once, and a busy one takes what has gathered. What could not be told is
told again, for as long as the worker runs. A worker that cannot tell anything goes on holding its leases, and so takes
nothing new.

A result that the server does not take (a character that no database stores, too many bytes) is found by halving its
batch, and becomes a failure that says so; its neighbours lose nothing.
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

log = logging.getLogger("quarterdeck.sdk.invocation_worker")
BYTES_MAX = 220 * 1024
RETRY_POLICY = Policy(max_attempts=0, base_ms=100, cap_ms=10_000)
RESULT_REFUSED = "result_refused"
SESSION_ENDED = "session_ended"


class Reporter:
    def __init__(self, invocations: Invocations, on_reported: Callable[[Completion], None]) -> None:
        self._invocations = invocations
        self._on_reported = on_reported
        """Called for each that needs to be told no more, whether it counted or not."""
        self._waiting: deque[Completion] = deque()
        self._has_waiting = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()

    def add(self, completion: Completion) -> None:
        self._waiting.append(completion)
        self._all_sent.clear()
        self._has_waiting.set()

    async def wait_until_sent(self) -> None:
        """Returns when everything has been told."""
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
        size = 0
        while self._waiting and len(batch) < BULK_MAX:
            size += len(msgspec.json.encode(self._waiting[0]))
            if batch and size > BYTES_MAX:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _try_send(self, batch: Sequence[Completion]) -> Sequence[Completion]:
        """Tells them; what must be told again."""
        try:
            return await self._send(batch)
        except Problem as problem:
            if _is_retryable(problem):
                log.warning("%d outcomes cannot be told now and are kept: %s", len(batch), problem.detail)
                return batch
            # Whoever speaks so is not listened to any more; the claims are about to hear the same, and end the worker.
            log.error("%d outcomes are refused: %s", len(batch), problem.detail)
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
            log.error("the outcome of %s cannot be told: %s", completion.id, refusal.detail)
            self._on_reported(completion)
            return []
        error: dict[str, object] = {"code": RESULT_REFUSED, "message": f"{completion.status}, but {refusal.detail}"}
        replacement = Completion(completion.id, completion.attempt_token, "failed", error=error, retryable=False)
        return await self._send([replacement])

    def _needs_retry(self, completion: Completion, outcomes: dict[str, Item]) -> bool:
        item = outcomes.get(completion.id)
        problem = None if item is None else item.error
        if problem is not None and problem.passes:
            return True
        if problem is not None:
            # Its lease has passed, or it was canceled meanwhile, or this was the answer that got lost: told already.
            log.warning("the outcome of %s does not count: %s", completion.id, problem.detail)
        self._on_reported(completion)
        return False


def _is_retryable(problem: Problem) -> bool:
    """A token that is no longer good may be renewed, also while the worker winds down, and what has been done is not to
    be done again for it. A session that has ended does not come back."""
    return isinstance(problem, Fault) or (isinstance(problem, Unauthenticated) and problem.code != SESSION_ENDED)
