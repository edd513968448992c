"""The calls of an invocation worker: claim, extend and give back leases, and report outcomes.

The worker registers its service before the first claim, and again if it was unregistered. An outcome that the server
cannot store is reported as a failure instead.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from quarterdeck.sdk.errors import Conflict, NotFound, Problem
from quarterdeck.sdk.invocation_worker.methods import Context
from quarterdeck.sdk.invocations import Invocations
from quarterdeck.sdk.types import BULK_MAX, Completion, Item, ItemProblem, Lease, Token
from quarterdeck.sdk.worker_core.in_flight import HeldAttempt
from quarterdeck.sdk.worker_core.lease_keeper import LeaseCalls
from quarterdeck.sdk.worker_core.reports import Outbox, OutboxCallbacks, OutboxLimits

log = logging.getLogger("quarterdeck.sdk.worker")
SUSPENDED = "agent_suspended"
RESULT_REFUSED = "result_refused"
OUTBOX_LIMITS = OutboxLimits(reports=BULK_MAX, bytes=220 * 1024, senders=1)
Register = Callable[[], Awaitable[tuple[str, bool]]]
"""Returns the service's id, and whether this worker registered it. False if the worker was given a `Service`."""


class InvocationSource:
    noun = "invocations"
    limit = BULK_MAX

    def __init__(self, invocations: Invocations, register: Register) -> None:
        self._invocations = invocations
        self._register = register
        self._service_id = ""
        self._is_registered = False
        """Whether the service is known to exist: this worker registered it, or a claim has succeeded."""

    async def prepare(self) -> None:
        if not self._service_id:
            self._service_id, self._is_registered = await self._register()

    async def claim(self, claim_id: str, limit: int, wait_seconds: float) -> Sequence[Lease]:
        leases = await self._invocations.claim(self._service_id, claim_id, most=limit, wait_seconds=wait_seconds)
        self._is_registered = True
        return leases

    async def release(self, leases: Sequence[Lease]) -> None:
        await self._invocations.release([Token(lease.id, lease.attempt_token) for lease in leases])

    async def handle_refusal(self, problem: Problem) -> None:
        if isinstance(problem, Conflict) and problem.code == SUSPENDED:
            log.warning("cannot claim invocations now: %s", problem.detail)
        elif isinstance(problem, NotFound) and self._is_registered:
            # The service was unregistered, for example because the session in its `Offer` ended.
            log.warning("%s Registering it again.", problem.detail)
            self._service_id, self._is_registered = "", False
        else:
            raise problem


class HeldLease(HeldAttempt):
    __slots__ = ("context", "lease")

    def __init__(self, lease: Lease, context: Context) -> None:
        super().__init__(lease.id, lease.attempt_token)
        self.lease = lease
        self.context = context

    def cancel(self, reason: str) -> None:
        self.context.cancel()


def build_lease_calls(invocations: Invocations) -> LeaseCalls[HeldLease]:
    async def extend(batch: Sequence[HeldLease]) -> Sequence[Item]:
        return await invocations.heartbeat(_tokens(batch))

    async def release(batch: Sequence[HeldLease]) -> Sequence[Item]:
        return await invocations.release(_tokens(batch))

    return LeaseCalls(extend, release)


def _tokens(batch: Sequence[HeldLease]) -> list[Token]:
    return [Token(held.id, held.token) for held in batch]


class CompletionOutbox(Outbox[Completion]):
    def __init__(self, invocations: Invocations, on_reported: Callable[[Completion], None]) -> None:
        super().__init__(
            "outcomes", OutboxCallbacks(self._send, self._on_reported, self._on_refused, _size), OUTBOX_LIMITS
        )
        self._invocations = invocations
        self._remove = on_reported
        """Called for each outcome that need not be sent again, even if it did not count."""

    async def _send(self, completions: Sequence[Completion]) -> Sequence[Item]:
        items = {item.id: item for item in await self._invocations.complete(completions)}
        return [items.get(completion.id) or Item(completion.id) for completion in completions]

    def _on_reported(self, completion: Completion, problem: ItemProblem | None) -> None:
        if problem is not None:
            # The lease expired, the invocation was canceled, or an earlier report counted and its response was lost.
            log.warning("the outcome of %s does not count: %s", completion.id, problem.detail)
        self._remove(completion)

    def _on_refused(self, completion: Completion, refusal: Problem) -> None:
        if completion.error is not None and completion.error.get("code") == RESULT_REFUSED:
            log.error("the outcome of %s cannot be reported: %s", completion.id, refusal.detail)
            self._remove(completion)
            return
        message = f"{completion.status}, but refused: {refusal.detail}"
        error: dict[str, object] = {"code": RESULT_REFUSED, "message": message}
        self.add(Completion(completion.id, completion.attempt_token, "failed", error=error, retryable=False))


def _size(completion: Completion) -> int:
    return len(msgspec.json.encode(completion))
