"""Delivery attempts: every server finds due deliveries, claims some, sends them, and reports the outcomes.

    a commit, an ended delay, an interval ─► poll ─► claim ─► sign and send ─► report
                                               │        │                       │
     endpoints with pending deliveries,        │        └ leased: if the        └ 410, or days of failures:
     except those without free slots ──────────┘          server dies, due        the endpoint is disabled
                                                          again at its end
All servers have the same role, and this module stores no state. The same poll finds pending deliveries of disabled
endpoints, which are marked as failed.

How it fails. An endpoint that is down, slow or blocked uses up only the attempts of its own deliveries and its own
slots. A report that cannot be written is retried until the lease expires; then the delivery is sent again with the same
id. A server that is stopping claims nothing new and waits for running attempts until its grace period ends. Deliveries
that are still being sent then are due again when their leases expire.
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
from quarterdeck.core.ids import Ref
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
"""Maximum pending deliveries that one transaction fails."""
REPORT_MARGIN_MS = 15_000
"""Time for the report: the lease ends this long after the timeout of the attempt."""
DELIVERED, FAILED, REFUSED, TIMED_OUT, UNANSWERED = ("delivered", "failed", "refused", "timed_out", "unanswered")
CODES = (DELIVERED, FAILED, REFUSED, TIMED_OUT, UNANSWERED)
"""Outcomes of an attempt, which are counted in metrics."""


@dataclass(frozen=True, slots=True)
class DeliveryDeps:
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
    """One claimed delivery."""

    delivery: Delivery
    endpoint: Endpoint
    claimed_at: Millis
    leased_until: float
    """On the clock of the event loop. The report must be written by then."""


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    code: str
    answer_status: int | None = None
    error: str | None = None
    """None if the delivery succeeded."""
    retry_after_ms: Millis = 0


class DeliveryWorker(DeliveryScheduler):
    def __init__(self, deps: DeliveryDeps, settings: WebhookSettings, grace_seconds: float) -> None:
        limits = SlotLimits(
            settings.webhook_concurrency, settings.webhook_zone_concurrency, settings.webhook_endpoint_concurrency
        )
        config = SchedulerConfig(
            "deliveries", limits, limits.per_target, settings.webhook_poll_ms / 1000, grace_seconds
        )
        super().__init__(deps.wakeups, config)
        self._deps = deps
        self._timeout_seconds = settings.webhook_timeout_ms / 1000
        self._lease_ms = settings.webhook_timeout_ms + REPORT_MARGIN_MS

    async def _find_waiting(self, excluded: ExcludedTargets) -> list[WaitingTarget]:
        endpoints = await self._deps.cross_zone_engine.read(lambda tx: find_pending_endpoints(tx, POLL_MAX, excluded))
        enabled = [
            WaitingTarget(pending.ref, pending.due_at - pending.now, self._claim_and_send)
            for pending in endpoints
            if pending.enabled
        ]
        return [
            *enabled,
            *(WaitingTarget(pending.ref, 0, self._fail_pending) for pending in endpoints if not pending.enabled),
        ]

    # -- claim ---------------------------------------------------------------------------------------------------

    async def _claim_and_send(self, ref: Ref, limit: int) -> int:
        """Claim up to `limit` due deliveries of an endpoint and start sending them."""
        started = asyncio.get_running_loop().time()
        claimed = await self._deps.claim(ClaimDeliveries(*ref, limit, self._lease_ms))
        if claimed.endpoint is None or self.is_draining:
            # A server that is stopping sends nothing: the claimed deliveries are due again when the lease expires.
            return 0
        for delivery in claimed.deliveries:
            attempt = Attempt(delivery, claimed.endpoint, claimed.claimed_at, started + self._lease_ms / 1000)
            self._start_send(ref, self._deliver(attempt), f"webhook {delivery.id}")
        return len(claimed.deliveries)

    async def _fail_pending(self, ref: Ref, limit: int) -> int:
        """Fail the pending deliveries of a disabled endpoint. None of them is sent."""
        while not self.is_draining:
            result = await self._deps.fail_pending(FailPending(*ref, FAIL_PENDING_MAX))
            if result.count < FAIL_PENDING_MAX:
                break
        return 0

    # -- send and report -----------------------------------------------------------------------------------------

    async def _deliver(self, attempt: Attempt) -> None:
        outcome = await self._send_request(attempt)
        self.counts[outcome.code] += 1
        await self._report(attempt, outcome)

    async def _send_request(self, attempt: Attempt) -> AttemptOutcome:
        try:
            response = await self._deps.http_client.send(self._build_request(attempt), self._timeout_seconds)
        except TimedOut as timeout:
            return AttemptOutcome(TIMED_OUT, error=str(timeout))
        except RequestBlocked as refusal:
            log.info("a delivery to webhook %s was blocked: %s (%s)", attempt.endpoint.id, refusal, refusal.address)
            return AttemptOutcome(REFUSED, error=str(refusal))
        except ResponseTooLarge as excess:
            # Only the status of a response is used.
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

    def _build_request(self, attempt: Attempt) -> Request:
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
        """Report the outcome, and retry while the database is unavailable, until the lease expires."""
        command = _report_command(attempt.delivery, outcome)
        try:
            result = await retry_while_unavailable(lambda: self._deps.report(command), attempt.leased_until)
        except Unavailable as error:
            log.warning("could not report the outcome of delivery %s: %r", command.id, error)
            return
        if result.disable_reason is not None:
            await self._disable(attempt.endpoint, result.disable_reason)

    async def _disable(self, endpoint: Endpoint, reason: DisableReason) -> None:
        try:
            await self._deps.submit(Disable(zone_id=endpoint.zone_id, id=endpoint.id, reason=reason, url=endpoint.url))
        except Problem as problem:
            # The endpoint has been removed, or the database is unreachable and the next failure tries again.
            log.info("webhook %s was not disabled: %r", endpoint.id, problem)


def _status_outcome(status: int, retry_after_ms: Millis = 0) -> AttemptOutcome:
    error = states.status_error(status)
    return AttemptOutcome(DELIVERED if error is None else FAILED, status, error, retry_after_ms)


def _report_command(delivery: Delivery, outcome: AttemptOutcome) -> ReportAttempt:
    assert delivery.next_at is not None  # a claimed delivery has a lease
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
