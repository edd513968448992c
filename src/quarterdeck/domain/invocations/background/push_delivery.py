"""Push delivery: the server is the worker of push services and calls their endpoints.

    a commit, an ended backoff, an interval ─► poll ─► claim ─► POST to the endpoint ─► complete
                                                 │        │            │
              services with due invocations,     │        │            └ the deadline passed: report as overdue
              except those without free slots ───┘        └ through the lane of all claims

Every server with a signing key runs one `PushWorker`, and all have the same role. If two servers find the same
invocation, both submit a claim and only one gets the invocation. A push is an ordinary attempt, with a token that
invalidates earlier tokens. This module stores no state: if a server is killed, any server retries its pushes after
their deadlines.

How it fails. An endpoint that is down, slow or blocked uses up only the attempts of its own invocations and the slots
of its own service. While the database is unreachable, no push starts, and reports of outcomes are retried until
REPORT_GRACE_SECONDS after the deadline. A server that is stopping claims nothing new and waits for running pushes until
its grace period ends. Pushes that are still running then fail at their deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.core.fair_slots import SlotLimits
from quarterdeck.core.webhook_signing import SecretDeriver
from quarterdeck.domain.invocations.model import (
    BULK_MAX,
    CheckOverdue,
    Claim,
    Complete,
    Invocation,
    InvocationSettings,
    Release,
)
from quarterdeck.domain.invocations.operations.batch import SubmitInvocationCommand
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
"""How long after an attempt's deadline its outcome is still reported. By then a sweep has usually ended the attempt."""


@dataclass(frozen=True, slots=True)
class PushDeps:
    engine: Engine
    cross_zone_engine: Engine
    wakeups: Wakeups
    submit: SubmitInvocationCommand
    http_client: OutboundClient
    secrets: SecretDeriver


class PushWorker(DeliveryScheduler):
    def __init__(self, deps: PushDeps, settings: InvocationSettings, grace_seconds: float) -> None:
        limits = SlotLimits(
            settings.push_concurrency, settings.push_zone_concurrency, settings.push_service_concurrency
        )
        config = SchedulerConfig("pushes", limits, BULK_MAX, settings.claim_poll_ms / 1000, grace_seconds)
        super().__init__(deps.wakeups, config)
        self._deps = deps

    async def _find_waiting(self, excluded: ExcludedTargets) -> list[WaitingTarget]:
        services_to_push = await self._deps.cross_zone_engine.read(
            lambda tx: find_services_to_push(tx, POLL_MAX, excluded)
        )
        return [
            WaitingTarget(ready.service, ready.next_at - ready.now, self._claim_and_push)
            for ready in services_to_push
            if ready.next_at is not None
        ]

    # -- claiming ------------------------------------------------------------------------------------------------

    async def _claim_and_push(self, ref: ServiceKey, limit: int) -> int:
        """Claim up to `limit` due invocations of a service and start pushing them."""
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
        return claimed.items

    async def _load_service(self, ref: ServiceKey) -> Service | None:
        """Read the service after the claim, to sign with its newest secret. None if it has ended or the read fails."""
        try:
            [rows] = await self._deps.engine.read(lambda tx: tx.read(services.load_statement([ref])), zones=[ref[0]])
        except StoreError as error:
            log.warning("cannot read service %s, releasing its claimed invocations: %s", ref[1], error)
            return None
        return services.decode_registered(rows).get(ref)

    async def _release(self, rows: Sequence[Invocation]) -> None:
        """Release invocations that were not sent, so that the attempts do not count."""
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
                # The invocation was canceled with its service, or the deadline sweep will end the attempt.
                log.debug("an invocation was not released: %r", outcome)

    # -- pushing -------------------------------------------------------------------------------------------------

    async def _push(self, row: Invocation, service: Service, deadline: float) -> None:
        outcome = await self._send_request(row, service, deadline)
        self.counts[rules.TIMED_OUT if outcome is None else outcome.code] += 1
        await self._report(row, outcome, deadline)

    async def _send_request(self, row: Invocation, service: Service, deadline: float) -> PushOutcome | None:
        """The outcome of the request, or None if the deadline passed."""
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
            log.info("a push to service %s was blocked: %s (%s)", service.id, refusal, refusal.address)
            return rules.failed_outcome(rules.REFUSED, str(refusal))
        except Unreachable as failure:
            return rules.failed_outcome(rules.UNREACHABLE, str(failure))
        except ResponseTooLarge as excess:
            return rules.oversized_outcome(excess.status)
        except InvalidResponse as failure:
            return rules.failed_outcome(rules.GARBLED, str(failure))
        return rules.response_outcome(response.status, response.headers.get("content-type"), response.body)

    async def _report(self, row: Invocation, outcome: PushOutcome | None, deadline: float) -> None:
        """Report the outcome, and retry while the database is unavailable.

        If the outcome cannot be reported, the attempt fails at its deadline and the invocation may be pushed again. The
        endpoint can recognise the repeat by the invocation's id.
        """
        command = CheckOverdue(zone_id=row.zone_id, id=row.id) if outcome is None else _complete_command(row, outcome)
        try:
            await retry_while_unavailable(lambda: self._deps.submit(command), deadline + REPORT_GRACE_SECONDS)
        except Unavailable as error:
            log.warning("could not report the outcome of push %s: %r", row.id, error)
        except Problem as problem:
            # The invocation's session or service has ended, or a sweep has ended the attempt: the outcome is ignored.
            log.debug("the outcome of push %s was ignored: %r", row.id, problem)


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
