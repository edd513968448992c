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
from quarterdeck.core.fair_slots import ShareLimits
from quarterdeck.core.webhook_signing import Secrets
from quarterdeck.domain.webhooks.model import (
    Changed,
    Command,
    Delivery,
    Disable,
    Endpoint,
    Ref,
    Report,
    Reported,
    Settle,
    Settled,
    Take,
    Taken,
    WebhookSettings,
    Why,
)
from quarterdeck.domain.webhooks.operations.reads import to_take
from quarterdeck.domain.webhooks.rules import states
from quarterdeck.engine.background import until_heard
from quarterdeck.engine.delivery_scheduler import LOOK_MAX, Found, Full, Outgoing, Terms
from quarterdeck.engine.outbound_http import Outward, OutwardError, Overlong, Refused, Request, TimedOut
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakes

log = logging.getLogger("quarterdeck.webhooks")
SETTLE_MAX = 500
"""Deliveries that one transaction ends."""
MARGIN_MS = 15_000
"""Between the end of an attempt and that of its lease: for its report."""
DELIVERED, FAILED, REFUSED, TIMED_OUT, UNANSWERED = ("delivered", "failed", "refused", "timed_out", "unanswered")
CODES = (DELIVERED, FAILED, REFUSED, TIMED_OUT, UNANSWERED)
"""What may come of an attempt: what is counted."""


@dataclass(frozen=True, slots=True)
class Means:
    """What it acts through."""

    everywhere: Engine
    wakes: Wakes
    take: Callable[[Take], Awaitable[Taken]]
    report: Callable[[Report], Awaitable[Reported]]
    settle: Callable[[Settle], Awaitable[Settled]]
    submit: Callable[[Command], Awaitable[Changed]]
    outward: Outward
    secrets: Secrets


@dataclass(frozen=True, slots=True)
class Attempt:
    """One delivery that was taken, and by when its report must have been heard."""

    row: Delivery
    endpoint: Endpoint
    at: Millis
    leased_until: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an attempt."""

    code: str
    answer_status: int | None = None
    error: str | None = None
    """None: it was delivered."""
    wait_ms: Millis = 0


class Deliverer(Outgoing):
    def __init__(self, means: Means, settings: WebhookSettings, grace_seconds: float) -> None:
        limits = ShareLimits(
            settings.webhook_concurrency, settings.webhook_zone_concurrency, settings.webhook_endpoint_concurrency
        )
        terms = Terms("deliveries", limits, limits.of_one, settings.webhook_poll_ms / 1000, grace_seconds)
        super().__init__(means.wakes, terms)
        self._means = means
        self._timeout_seconds = settings.webhook_timeout_ms / 1000
        self._lease_ms = settings.webhook_timeout_ms + MARGIN_MS

    async def _find(self, full: Full) -> list[Found]:
        found = await self._means.everywhere.read(lambda tx: to_take(tx, LOOK_MAX, full))
        waiting = [Found(each.ref, each.at - each.now, self._lease) for each in found if each.enabled]
        return [*waiting, *(Found(each.ref, 0, self._settle) for each in found if not each.enabled)]

    # -- taking --------------------------------------------------------------------------------------------------

    async def _lease(self, ref: Ref, number: int) -> int:
        """Takes what waits for an endpoint, up to so many, and begins to send it."""
        began = asyncio.get_running_loop().time()
        taken = await self._means.take(Take(*ref, number, self._lease_ms))
        if taken.endpoint is None or self.drains:
            # What was taken by a server that stops is due again when its lease has ended.
            return 0
        for row in taken.deliveries:
            attempt = Attempt(row, taken.endpoint, taken.at, began + self._lease_ms / 1000)
            self._send(ref, self._deliver(attempt), f"webhook {row.id}")
        return len(taken.deliveries)

    async def _settle(self, ref: Ref, number: int) -> int:
        """Ends what waits for an endpoint that hears of nothing any more: none of it is sent."""
        while not self.drains:
            settled = await self._means.settle(Settle(*ref, SETTLE_MAX))
            if settled.number < SETTLE_MAX:
                break
        return 0

    # -- sending -------------------------------------------------------------------------------------------------

    async def _deliver(self, attempt: Attempt) -> None:
        verdict = await self._ask(attempt)
        self.counts[verdict.code] += 1
        await self._report(attempt, verdict)

    async def _ask(self, attempt: Attempt) -> Verdict:
        try:
            answer = await self._means.outward.ask(self._request(attempt), self._timeout_seconds)
        except TimedOut as late:
            return Verdict(TIMED_OUT, error=str(late))
        except Refused as refusal:
            log.info("a delivery to %s was refused: %s (%s)", attempt.endpoint.id, refusal, refusal.address)
            return Verdict(REFUSED, error=str(refusal))
        except Overlong as excess:
            # Nobody reads what an endpoint has to say beyond its status.
            return Verdict(UNANSWERED, error=str(excess)) if excess.status is None else _by(excess.status)
        except OutwardError as failure:
            return Verdict(UNANSWERED, error=str(failure))
        return _by(answer.status, states.wait_of(answer.status, answer.headers.get("retry-after"), attempt.at))

    def _request(self, attempt: Attempt) -> Request:
        endpoint, row = attempt.endpoint, attempt.row
        numbers = states.secret_numbers(endpoint, attempt.at)
        secrets = [self._means.secrets(*endpoint.ref, number) for number in numbers]
        body = row.body.encode()
        headers = [("Content-Type", "application/json"), *webhook_signing.signed(row.id, attempt.at, body, secrets)]
        if row.trace is not None:
            headers.append(("traceparent", row.trace))
        return Request("POST", endpoint.url, headers, body, asker=endpoint.zone_id)

    async def _report(self, attempt: Attempt, verdict: Verdict) -> None:
        """Says what came of it, until somebody has heard or the lease has ended."""
        ask = _reporting(attempt.row, verdict)
        try:
            reported = await until_heard(lambda: self._means.report(ask), attempt.leased_until)
        except Unavailable as away:
            log.warning("what came of the delivery %s could not be reported: %r", ask.id, away)
            return
        if reported.ends is not None:
            await self._disable(attempt.endpoint, reported.ends)

    async def _disable(self, endpoint: Endpoint, why: Why) -> None:
        try:
            await self._means.submit(Disable(zone_id=endpoint.zone_id, id=endpoint.id, why=why, url=endpoint.url))
        except Problem as problem:
            # It was removed meanwhile; or the database is away, and its next failure finds the same.
            log.info("the endpoint %s was not disabled: %r", endpoint.id, problem)


def _by(status: int, wait_ms: Millis = 0) -> Verdict:
    why = states.refusal(status)
    return Verdict(DELIVERED if why is None else FAILED, status, why, wait_ms)


def _reporting(row: Delivery, verdict: Verdict) -> Report:
    assert row.next_at is not None  # it was leased until then
    return Report(
        zone_id=row.zone_id,
        endpoint_id=row.endpoint_id,
        id=row.id,
        until=row.next_at,
        attempt=row.attempts,
        answer_status=verdict.answer_status,
        error=verdict.error,
        wait_ms=verdict.wait_ms,
        chance=random.random(),
    )
