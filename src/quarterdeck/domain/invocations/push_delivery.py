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
from quarterdeck.core.fair_slots import SlotLimits
from quarterdeck.core.webhook_signing import SecretDeriver
from quarterdeck.domain.invocations.model import (
    BULK_MAX,
    CheckOverdue,
    Claim,
    ClaimedInvocations,
    Complete,
    Invocation,
    InvocationCommand,
    InvocationResult,
    InvocationSettings,
    Release,
)
from quarterdeck.domain.invocations.operations.reads import find_services_to_push
from quarterdeck.domain.invocations.rules import push_protocol as rules
from quarterdeck.domain.invocations.rules.decider import ServiceKey
from quarterdeck.domain.invocations.rules.push_protocol import PushOutcome
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.services.model import Service
from quarterdeck.engine.background import retry_while_unavailable
from quarterdeck.engine.delivery_scheduler import (
    POLL_MAX,
    DeliveryScheduler,
    ExcludedTargets,
    SchedulerConfig,
    WaitingTarget,
)
from quarterdeck.engine.outbound_http import (
    InvalidResponse,
    OutboundClient,
    Request,
    RequestBlocked,
    ResponseTooLarge,
    TimedOut,
    Unreachable,
)
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.pushing")
REPORT_GRACE_SECONDS = 30.0
"""For how long after its deadline an outcome is still worth reporting: until then a sweep has most likely come."""


@dataclass(frozen=True, slots=True)
class PushDeps:
    """What it acts through."""

    engine: Engine
    cross_zone_engine: Engine
    wakeups: Wakeups
    submit: Callable[[InvocationCommand], Awaitable[InvocationResult]]
    http_client: OutboundClient
    secrets: SecretDeriver


class PushWorker(DeliveryScheduler):
    def __init__(self, deps: PushDeps, settings: InvocationSettings, grace_seconds: float) -> None:
        limits = SlotLimits(
            settings.push_concurrency, settings.push_zone_concurrency, settings.push_service_concurrency
        )
        terms = SchedulerConfig("pushes", limits, BULK_MAX, settings.claim_poll_ms / 1000, grace_seconds)
        super().__init__(deps.wakeups, terms)
        self._deps = deps

    async def _find_waiting(self, excluded: ExcludedTargets) -> list[WaitingTarget]:
        found = await self._deps.cross_zone_engine.read(lambda tx: find_services_to_push(tx, POLL_MAX, excluded))
        return [
            WaitingTarget(ready.service, ready.next_at - ready.now, self._claim_and_push)
            for ready in found
            if ready.next_at is not None
        ]

    # -- claiming ------------------------------------------------------------------------------------------------

    async def _claim_and_push(self, ref: ServiceKey, limit: int) -> int:
        """Takes what a service has, up to so many, and begins to push it."""
        claimed = await self._claim_invocations(ref, limit)
        claimed_at = asyncio.get_running_loop().time()
        service = await self._load_service(ref) if claimed else None
        if service is None or self.is_draining:
            await self._release(claimed)
            return 0
        for row in claimed:
            self._start_send(ref, self._push(row, service, claimed_at + row.timeout_ms / 1000), f"push {row.id}")
        return len(claimed)

    async def _claim_invocations(self, ref: ServiceKey, limit: int) -> Sequence[Invocation]:
        zone_id, service_id = ref
        tokens = tuple(secrets.token_urlsafe(16) for _ in range(limit))
        claimed = await self._deps.submit(
            Claim(zone_id=zone_id, service_id=service_id, limit=limit, attempt_tokens=tokens, is_push=True)
        )
        assert isinstance(claimed, ClaimedInvocations)
        return claimed.items

    async def _load_service(self, ref: ServiceKey) -> Service | None:
        """Read after the claim, so that what is signed is signed with the newest secret. None if it cannot be had."""
        try:
            [rows] = await self._deps.engine.read(lambda tx: tx.read(services.load_statement([ref])), zones=[ref[0]])
        except StoreError as error:
            log.warning("the service %s cannot be read, and what was taken goes back: %s", ref[1], error)
            return None
        return services.decode_registered(rows).get(ref)

    async def _release(self, rows: Sequence[Invocation]) -> None:
        """What was never sent does not count as an attempt."""
        commands = [
            Release(
                zone_id=row.zone_id,
                id=row.id,
                attempt_token=row.attempt_token or "",
                lease_expires_at=row.lease_expires_at,
            )
            for row in rows
        ]
        for outcome in await asyncio.gather(*map(self._deps.submit, commands), return_exceptions=True):
            if isinstance(outcome, BaseException):
                # It has ended with its service; or its deadline will find it.
                log.debug("an invocation was not given back: %r", outcome)

    # -- pushing -------------------------------------------------------------------------------------------------

    async def _push(self, row: Invocation, service: Service, deadline: float) -> None:
        outcome = await self._send_request(row, service, deadline)
        self.counts[rules.TIMED_OUT if outcome is None else outcome.code] += 1
        await self._report(row, outcome, deadline)

    async def _send_request(self, row: Invocation, service: Service, deadline: float) -> PushOutcome | None:
        """What the endpoint made of it, or None if it did not say so in time."""
        secret_numbers = rules.secret_numbers(service.secret_number)
        headers, body = rules.build_request(
            row, [self._deps.secrets(*service.ref, number) for number in secret_numbers]
        )
        request = Request("POST", service.endpoint_url, headers, body, requester=service.zone_id)
        try:
            response = await self._deps.http_client.send(request, deadline - asyncio.get_running_loop().time())
        except TimedOut:
            return None
        except RequestBlocked as refusal:
            log.info("a push to service %s was refused: %s (%s)", service.id, refusal, refusal.address)
            return rules.failed_outcome(rules.REFUSED, str(refusal))
        except Unreachable as failure:
            return rules.failed_outcome(rules.UNREACHABLE, str(failure))
        except ResponseTooLarge as excess:
            return rules.oversized_outcome(excess.status)
        except InvalidResponse as failure:
            return rules.failed_outcome(rules.GARBLED, str(failure))
        return rules.response_outcome(response.status, response.headers.get("content-type"), response.body)

    async def _report(self, row: Invocation, outcome: PushOutcome | None, deadline: float) -> None:
        """Says what came of it, until somebody has heard. An outcome that nobody could be told of is tried again by its
        deadline; the endpoint then knows it by its id."""
        command = CheckOverdue(zone_id=row.zone_id, id=row.id) if outcome is None else _complete_command(row, outcome)
        try:
            await retry_while_unavailable(lambda: self._deps.submit(command), deadline + REPORT_GRACE_SECONDS)
        except Unavailable as error:
            log.warning("what came of the push of %s could not be reported: %r", row.id, error)
        except Problem as problem:
            # Its session or its service ended meanwhile, or a sweep was faster: this attempt counts no more.
            log.debug("what came of the push of %s counts no more: %r", row.id, problem)


def _complete_command(row: Invocation, outcome: PushOutcome) -> Complete:
    return Complete(
        zone_id=row.zone_id,
        id=row.id,
        status=outcome.status,
        result=outcome.result,
        error=outcome.error,
        retryable=outcome.retryable,
        attempt_token=row.attempt_token,
    )
