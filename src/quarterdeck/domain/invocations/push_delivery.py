"""Pushing: the server as the worker of services that are called at their endpoint.

    a commit, a backoff that is over, an interval ─► look ─► claim ─► ask the endpoint ─► complete
                                                       │        │            │
              services with due work, but not those    │        │            └ the deadline passed: said to be overdue
              that have all their slots ───────────────┘        └ through the lane that everybody claims by

Every server has one, and none of them is special. Two that see the same work both ask for it, and the lane gives it to
one; whatever is given is an attempt like a worker's, with a token that fences the ones before. So nothing here needs to
be remembered: what a server was doing when it was killed is found when its deadline has passed, and tried again by
whoever is there.

How it fails. An endpoint that is down, slow or forbidden costs attempts of its own calls and slots of its own service,
and nobody else's. While the database is away nothing is begun; what an endpoint has answered is reported as long as
there is hope that it counts. A stopping server takes nothing new, waits for what is under way as long as it may wait,
and leaves the rest to the deadline.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.core.fair_slots import ShareLimits
from quarterdeck.core.webhook_signing import Secrets
from quarterdeck.domain.invocations.model import (
    BULK_MAX,
    Claim,
    Command,
    Complete,
    Invocation,
    InvocationSettings,
    Leases,
    Outcome,
    Overdue,
    Release,
)
from quarterdeck.domain.invocations.operations.reads import to_push
from quarterdeck.domain.invocations.rules import push_protocol as rules
from quarterdeck.domain.invocations.rules.decider import ServiceKey
from quarterdeck.domain.invocations.rules.push_protocol import Verdict
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.services.model import Service
from quarterdeck.engine.background import until_heard
from quarterdeck.engine.delivery_scheduler import LOOK_MAX, Found, Full, Outgoing, Terms
from quarterdeck.engine.outbound_http import Garbled, Outward, Overlong, Refused, Request, TimedOut, Unreachable
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakes
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.pushing")
REPORT_SECONDS = 30.0
"""For how long after its deadline an outcome is still worth reporting: until then a sweep has most likely come."""


@dataclass(frozen=True, slots=True)
class Means:
    """What it acts through."""

    engine: Engine
    everywhere: Engine
    wakes: Wakes
    submit: Callable[[Command], Awaitable[Outcome]]
    outward: Outward
    secrets: Secrets


class Pusher(Outgoing):
    def __init__(self, means: Means, settings: InvocationSettings, grace_seconds: float) -> None:
        limits = ShareLimits(
            settings.push_concurrency, settings.push_zone_concurrency, settings.push_service_concurrency
        )
        terms = Terms("pushes", limits, BULK_MAX, settings.claim_poll_ms / 1000, grace_seconds)
        super().__init__(means.wakes, terms)
        self._means = means

    async def _find(self, full: Full) -> list[Found]:
        found = await self._means.everywhere.read(lambda tx: to_push(tx, LOOK_MAX, full))
        return [Found(each.service, each.at - each.now, self._claim) for each in found if each.at is not None]

    # -- claiming ------------------------------------------------------------------------------------------------

    async def _claim(self, ref: ServiceKey, number: int) -> int:
        """Takes what a service has, up to so many, and begins to push it."""
        given = await self._leases(ref, number)
        received = asyncio.get_running_loop().time()
        service = await self._service(ref) if given else None
        if service is None or self.drains:
            await self._give_back(given)
            return 0
        for row in given:
            self._send(ref, self._push(row, service, received + row.timeout_ms / 1000), f"push {row.id}")
        return len(given)

    async def _leases(self, ref: ServiceKey, number: int) -> Sequence[Invocation]:
        zone_id, service_id = ref
        tokens = tuple(secrets.token_urlsafe(16) for _ in range(number))
        leases = await self._means.submit(
            Claim(zone_id=zone_id, service_id=service_id, max=number, tokens=tokens, pushes=True)
        )
        assert isinstance(leases, Leases)
        return leases.items

    async def _service(self, ref: ServiceKey) -> Service | None:
        """Read after the claim, so that what is signed is signed with the newest secret. None if it cannot be had."""
        try:
            [rows] = await self._means.engine.read(lambda tx: tx.read(services.get([ref])), zones=[ref[0]])
        except StoreError as error:
            log.warning("the service %s cannot be read, and what was taken goes back: %s", ref[1], error)
            return None
        return services.found(rows).get(ref)

    async def _give_back(self, rows: Sequence[Invocation]) -> None:
        """What was never sent does not count as an attempt."""
        asks = [
            Release(
                zone_id=row.zone_id, id=row.id, token=row.attempt_token or "", lease_expires_at=row.lease_expires_at
            )
            for row in rows
        ]
        for outcome in await asyncio.gather(*map(self._means.submit, asks), return_exceptions=True):
            if isinstance(outcome, BaseException):
                # It has ended with its service; or its deadline will find it.
                log.debug("an invocation was not given back: %r", outcome)

    # -- pushing -------------------------------------------------------------------------------------------------

    async def _push(self, row: Invocation, service: Service, deadline: float) -> None:
        verdict = await self._ask(row, service, deadline)
        self.counts[rules.TIMED_OUT if verdict is None else verdict.code] += 1
        await self._report(row, verdict, deadline)

    async def _ask(self, row: Invocation, service: Service, deadline: float) -> Verdict | None:
        """What the endpoint made of it, or None if it did not say so in time."""
        numbers = rules.secret_numbers(service.secret_number)
        headers, body = rules.pushed(row, [self._means.secrets(*service.ref, number) for number in numbers])
        request = Request("POST", service.endpoint_url, headers, body, asker=service.zone_id)
        try:
            answer = await self._means.outward.ask(request, deadline - asyncio.get_running_loop().time())
        except TimedOut:
            return None
        except Refused as refusal:
            log.info("a push to service %s was refused: %s (%s)", service.id, refusal, refusal.address)
            return rules.failed(rules.REFUSED, str(refusal))
        except Unreachable as failure:
            return rules.failed(rules.UNREACHABLE, str(failure))
        except Overlong as excess:
            return rules.overflowed(excess.status)
        except Garbled as failure:
            return rules.failed(rules.GARBLED, str(failure))
        return rules.answered(answer.status, answer.headers.get("content-type"), answer.body)

    async def _report(self, row: Invocation, verdict: Verdict | None, deadline: float) -> None:
        """Says what came of it, until somebody has heard. An outcome that nobody could be told of is tried again by its
        deadline; the endpoint then knows it by its id."""
        ask = Overdue(zone_id=row.zone_id, id=row.id) if verdict is None else _completion(row, verdict)
        try:
            await until_heard(lambda: self._means.submit(ask), deadline + REPORT_SECONDS)
        except Unavailable as away:
            log.warning("what came of the push of %s could not be reported: %r", row.id, away)
        except Problem as late:
            # Its session or its service ended meanwhile, or a sweep was faster: this attempt counts no more.
            log.debug("what came of the push of %s counts no more: %r", row.id, late)


def _completion(row: Invocation, verdict: Verdict) -> Complete:
    return Complete(
        zone_id=row.zone_id,
        id=row.id,
        status=verdict.status,
        result=verdict.result,
        error=verdict.error,
        retryable=verdict.retryable,
        token=row.attempt_token,
    )
