"""Attempts: every server looks for deliveries that are due, takes some, sends them, and writes down what came of it.

    a commit, a pause that is over, an interval ─► look ─► take ─► sign and send ─► report
                                                     │        │                       │
     endpoints for which something waits, but not    │        └ leased: whoever       └ 410, or days of failures:
     those that have all their slots ────────────────┘          dies leaves it to       the endpoint is disabled
                                                                the lease's end
No server is special, and nothing here needs to be remembered. What waits for an endpoint that hears of nothing any more
is found by the same look, and ended.

How it fails. An endpoint that is down, slow or forbidden costs attempts of its own deliveries and slots of its own. A
report that cannot be written is tried again while the lease lasts; after it, the delivery is sent once more, by the
same id. A stopping server takes nothing new, waits for what is under way as long as it may, and leaves the rest to
the lease.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import webhook_signing
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.core.fair_slots import SlotLimits
from quarterdeck.core.webhook_signing import SecretDeriver
from quarterdeck.domain.webhooks.model import (
    ClaimDeliveries,
    ClaimedDeliveries,
    Delivery,
    Disable,
    DisableReason,
    Endpoint,
    EndpointResult,
    FailPending,
    FailPendingResult,
    Ref,
    ReportAttempt,
    ReportResult,
    WebhookCommand,
    WebhookSettings,
)
from quarterdeck.domain.webhooks.operations.reads import find_pending_endpoints
from quarterdeck.domain.webhooks.rules import states
from quarterdeck.engine.background import retry_while_unavailable
from quarterdeck.engine.delivery_scheduler import (
    POLL_MAX,
    DeliveryScheduler,
    ExcludedTargets,
    SchedulerConfig,
    WaitingTarget,
)
from quarterdeck.engine.outbound_http import (
    OutboundClient,
    OutboundError,
    Request,
    RequestBlocked,
    ResponseTooLarge,
    TimedOut,
)
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakeups

log = logging.getLogger("quarterdeck.webhooks")
FAIL_PENDING_MAX = 500
"""Deliveries that one transaction ends."""
REPORT_MARGIN_MS = 15_000
"""Between the end of an attempt and that of its lease: for its report."""
DELIVERED, FAILED, REFUSED, TIMED_OUT, UNANSWERED = ("delivered", "failed", "refused", "timed_out", "unanswered")
CODES = (DELIVERED, FAILED, REFUSED, TIMED_OUT, UNANSWERED)
"""What may come of an attempt: what is counted."""


@dataclass(frozen=True, slots=True)
class DeliveryDeps:
    """What it acts through."""

    cross_zone_engine: Engine
    wakeups: Wakeups
    claim: Callable[[ClaimDeliveries], Awaitable[ClaimedDeliveries]]
    report: Callable[[ReportAttempt], Awaitable[ReportResult]]
    fail_pending: Callable[[FailPending], Awaitable[FailPendingResult]]
    submit: Callable[[WebhookCommand], Awaitable[EndpointResult]]
    http_client: OutboundClient
    secrets: SecretDeriver


@dataclass(frozen=True, slots=True)
class Attempt:
    """One delivery that was taken, and by when its report must have been heard."""

    delivery: Delivery
    endpoint: Endpoint
    claimed_at: Millis
    leased_until: float


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What came of an attempt."""

    code: str
    answer_status: int | None = None
    error: str | None = None
    """None: it was delivered."""
    retry_after_ms: Millis = 0


class DeliveryWorker(DeliveryScheduler):
    def __init__(self, deps: DeliveryDeps, settings: WebhookSettings, grace_seconds: float) -> None:
        limits = SlotLimits(
            settings.webhook_concurrency, settings.webhook_zone_concurrency, settings.webhook_endpoint_concurrency
        )
        terms = SchedulerConfig("deliveries", limits, limits.per_target, settings.webhook_poll_ms / 1000, grace_seconds)
        super().__init__(deps.wakeups, terms)
        self._deps = deps
        self._timeout_seconds = settings.webhook_timeout_ms / 1000
        self._lease_ms = settings.webhook_timeout_ms + REPORT_MARGIN_MS

    async def _find_waiting(self, excluded: ExcludedTargets) -> list[WaitingTarget]:
        found = await self._deps.cross_zone_engine.read(lambda tx: find_pending_endpoints(tx, POLL_MAX, excluded))
        enabled = [
            WaitingTarget(pending.ref, pending.due_at - pending.now, self._claim_and_send)
            for pending in found
            if pending.enabled
        ]
        return [
            *enabled,
            *(WaitingTarget(pending.ref, 0, self._fail_pending) for pending in found if not pending.enabled),
        ]

    # -- taking --------------------------------------------------------------------------------------------------

    async def _claim_and_send(self, ref: Ref, limit: int) -> int:
        """Takes what waits for an endpoint, up to so many, and begins to send it."""
        started = asyncio.get_running_loop().time()
        claimed = await self._deps.claim(ClaimDeliveries(*ref, limit, self._lease_ms))
        if claimed.endpoint is None or self.is_draining:
            # What was taken by a server that stops is due again when its lease has ended.
            return 0
        for delivery in claimed.deliveries:
            attempt = Attempt(delivery, claimed.endpoint, claimed.claimed_at, started + self._lease_ms / 1000)
            self._start_send(ref, self._deliver(attempt), f"webhook {delivery.id}")
        return len(claimed.deliveries)

    async def _fail_pending(self, ref: Ref, limit: int) -> int:
        """Ends what waits for an endpoint that hears of nothing any more: none of it is sent."""
        while not self.is_draining:
            result = await self._deps.fail_pending(FailPending(*ref, FAIL_PENDING_MAX))
            if result.count < FAIL_PENDING_MAX:
                break
        return 0

    # -- sending -------------------------------------------------------------------------------------------------

    async def _deliver(self, attempt: Attempt) -> None:
        outcome = await self._send_request(attempt)
        self.counts[outcome.code] += 1
        await self._report(attempt, outcome)

    async def _send_request(self, attempt: Attempt) -> AttemptOutcome:
        try:
            response = await self._deps.http_client.send(self._request(attempt), self._timeout_seconds)
        except TimedOut as late:
            return AttemptOutcome(TIMED_OUT, error=str(late))
        except RequestBlocked as refusal:
            log.info("a delivery to %s was refused: %s (%s)", attempt.endpoint.id, refusal, refusal.address)
            return AttemptOutcome(REFUSED, error=str(refusal))
        except ResponseTooLarge as excess:
            # Nobody reads what an endpoint has to say beyond its status.
            return (
                AttemptOutcome(UNANSWERED, error=str(excess))
                if excess.status is None
                else _status_outcome(excess.status)
            )
        except OutboundError as failure:
            return AttemptOutcome(UNANSWERED, error=str(failure))
        return _status_outcome(
            response.status,
            states.retry_after_ms(response.status, response.headers.get("retry-after"), attempt.claimed_at),
        )

    def _request(self, attempt: Attempt) -> Request:
        endpoint, delivery = attempt.endpoint, attempt.delivery
        secret_numbers = states.secret_numbers(endpoint, attempt.claimed_at)
        secrets = [self._deps.secrets(*endpoint.ref, number) for number in secret_numbers]
        body = delivery.body.encode()
        headers = [
            ("Content-Type", "application/json"),
            *webhook_signing.signature_headers(delivery.id, attempt.claimed_at, body, secrets),
        ]
        if delivery.trace is not None:
            headers.append(("traceparent", delivery.trace))
        return Request("POST", endpoint.url, headers, body, requester=endpoint.zone_id)

    async def _report(self, attempt: Attempt, outcome: AttemptOutcome) -> None:
        """Says what came of it, until somebody has heard or the lease has ended."""
        command = _report_command(attempt.delivery, outcome)
        try:
            result = await retry_while_unavailable(lambda: self._deps.report(command), attempt.leased_until)
        except Unavailable as error:
            log.warning("what came of the delivery %s could not be reported: %r", command.id, error)
            return
        if result.disable_reason is not None:
            await self._disable(attempt.endpoint, result.disable_reason)

    async def _disable(self, endpoint: Endpoint, reason: DisableReason) -> None:
        try:
            await self._deps.submit(Disable(zone_id=endpoint.zone_id, id=endpoint.id, reason=reason, url=endpoint.url))
        except Problem as problem:
            # It was removed meanwhile; or the database is away, and its next failure finds the same.
            log.info("the endpoint %s was not disabled: %r", endpoint.id, problem)


def _status_outcome(status: int, retry_after_ms: Millis = 0) -> AttemptOutcome:
    error = states.status_error(status)
    return AttemptOutcome(DELIVERED if error is None else FAILED, status, error, retry_after_ms)


def _report_command(delivery: Delivery, outcome: AttemptOutcome) -> ReportAttempt:
    assert delivery.next_at is not None  # it was leased until then
    return ReportAttempt(
        zone_id=delivery.zone_id,
        endpoint_id=delivery.endpoint_id,
        id=delivery.id,
        lease_expires_at=delivery.next_at,
        attempt=delivery.attempts,
        answer_status=outcome.answer_status,
        error=outcome.error,
        retry_after_ms=outcome.retry_after_ms,
        jitter=random.random(),
    )
