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
import contextlib
import logging
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass

from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.core.pushkeys import Secrets
from quarterdeck.core.retry import Policy, delay
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
from quarterdeck.domain.invocations.operations.looking import to_push
from quarterdeck.domain.invocations.rules import pushing as rules
from quarterdeck.domain.invocations.rules.board import ServiceKey
from quarterdeck.domain.invocations.rules.pushing import Verdict
from quarterdeck.domain.invocations.rules.slots import SlotLimits, Slots
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.services.model import Service
from quarterdeck.engine.outward import (
    Garbled,
    Outward,
    Overlong,
    Refused,
    Request,
    TimedOut,
    Unreachable,
)
from quarterdeck.engine.tx import Engine
from quarterdeck.engine.wake import Wakes
from quarterdeck.store.port import StoreError

log = logging.getLogger("quarterdeck.pushing")
LOOK_MAX = 100
"""Services that one look finds at most."""
GAP_SECONDS = 0.005
QUIET_GAP_SECONDS = 0.05
"""Between two looks at least, however often it is woken: after one that found something, and after one that found
nothing. Every commit of every server wakes, and most have nothing to do with this."""
SHARE, QUIET_SHARE = 0.2, 0.05
"""Of the time, for looking: with ten thousand services to look through, a look is no trifle."""
FAILED_GAP_SECONDS = 0.5
"""After one that failed."""
REPORT = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=2_000)
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


class Pusher:
    def __init__(self, means: Means, settings: InvocationSettings, grace_seconds: float) -> None:
        self._means = means
        self._poll_seconds = settings.claim_poll_ms / 1000
        self._grace_seconds = grace_seconds
        self._slots = Slots(
            SlotLimits(
                settings.push_concurrency, settings.push_zone_concurrency, settings.push_service_concurrency
            )
        )
        self._aside: dict[ServiceKey, float] = {}
        """Services whose work could not be claimed, and until when nobody tries again."""
        self._stir = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained_at: float | None = None
        self.counts: Counter[str] = Counter()
        """Attempts, by what came of them."""

    def __len__(self) -> int:
        """Pushes under way."""
        return len(self._slots)

    def start(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._run(), name="pusher")

    def drain(self) -> None:
        """Takes nothing new from here on."""
        if self._drained_at is None:
            self._drained_at = asyncio.get_running_loop().time()

    async def stop(self) -> None:
        """Returns when what was under way has come to its end, or has had its time."""
        self.drain()
        assert self._drained_at is not None
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        left = self._drained_at + self._grace_seconds - asyncio.get_running_loop().time()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, left))
        if cut := [*self._tasks]:
            log.warning("%d pushes were cut; they are tried again when their deadline has passed", len(cut))
            for task in cut:
                task.cancel()
            await asyncio.wait(cut)

    # -- looking -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        unsubscribe = self._means.wakes.subscribe(self._stir.set)
        loop = asyncio.get_running_loop()
        try:
            while self._drained_at is None:
                began = loop.time()
                self._stir.clear()
                pause, gap = await self._looked()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stir.wait()
                await asyncio.sleep(max(0.0, began + gap - loop.time()))
        finally:
            unsubscribe()

    async def _looked(self) -> tuple[float, float]:
        """How long to rest, and how long at least."""
        try:
            return await self._look()
        except StoreError as error:
            log.debug("cannot look for what is to be pushed: %s", error)
        except Exception:  # nobody would notice the end of this task: nothing would be pushed any more
            log.exception("looking for what is to be pushed failed")
        return FAILED_GAP_SECONDS, FAILED_GAP_SECONDS

    async def _look(self) -> tuple[float, float]:
        if self._slots.is_full():
            # Whoever gives a slot back stirs.
            return self._poll_seconds, GAP_SECONDS
        full, began = self._passed_over(), asyncio.get_running_loop().time()
        found = await self._means.everywhere.read(lambda tx: to_push(tx, LOOK_MAX, full))
        took = asyncio.get_running_loop().time() - began
        due = [each.service for each in found if each.at is not None and each.at <= each.now]
        for service in due:
            if number := min(self._slots.free(service), BULK_MAX):
                self._slots.take(service, number)
                self._begin(self._claim(service, number), f"push claim {service[1]}")
        if len(due) == LOOK_MAX:
            self._stir.set()
        # The earliest stand first: the next after those that are due is the next of all.
        ahead = [(each.at - each.now) / 1000 for each in found[len(due) :] if each.at is not None]
        pause = min([self._poll_seconds, *ahead[:1]])
        gap, share = (GAP_SECONDS, SHARE) if due else (QUIET_GAP_SECONDS, QUIET_SHARE)
        return pause, min(max(min(gap, pause), took / share), self._poll_seconds)

    def _passed_over(self) -> list[tuple[str, str | None]]:
        now = asyncio.get_running_loop().time()
        self._aside = {ref: until for ref, until in self._aside.items() if until > now}
        zones: list[tuple[str, str | None]] = [(zone_id, None) for zone_id in self._slots.full_zones()]
        return [*zones, *self._slots.full_services(), *self._aside]

    # -- claiming ------------------------------------------------------------------------------------------------

    async def _claim(self, ref: ServiceKey, number: int) -> None:
        """Takes what a service has, up to the slots that were kept for it, and begins to push it."""
        kept = 0
        try:
            given = await self._leases(ref, number)
            received = asyncio.get_running_loop().time()
            service = await self._service(ref) if given else None
            if service is None or self._drained_at is not None:
                await self._give_back(given)
                return
            for row in given:
                self._begin(self._push(row, service, received + row.timeout_ms / 1000), f"push {row.id}")
            kept = len(given)
        except Problem as problem:
            # It has gone, is not pushed to any more, or the database is away: it may be otherwise in a while.
            log.debug("what the service %s has cannot be taken: %r", ref[1], problem)
            self._aside[ref] = asyncio.get_running_loop().time() + self._poll_seconds
        finally:
            self._slots.give(ref, number - kept)
            if kept == number:
                self._stir.set()

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
                zone_id=row.zone_id,
                id=row.id,
                token=row.attempt_token or "",
                lease_expires_at=row.lease_expires_at,
            )
            for row in rows
        ]
        for outcome in await asyncio.gather(*map(self._means.submit, asks), return_exceptions=True):
            if isinstance(outcome, BaseException):
                # It has ended with its service; or its deadline will find it.
                log.debug("an invocation was not given back: %r", outcome)

    # -- pushing -------------------------------------------------------------------------------------------------

    async def _push(self, row: Invocation, service: Service, deadline: float) -> None:
        try:
            verdict = await self._ask(row, service, deadline)
            self.counts[rules.TIMED_OUT if verdict is None else verdict.code] += 1
            await self._report(row, verdict, deadline)
        finally:
            self._slots.give(service.ref, 1)
            self._stir.set()

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
        tries = 0
        while True:
            tries += 1
            try:
                await self._means.submit(ask)
                return
            except Unavailable as away:
                if asyncio.get_running_loop().time() > deadline + REPORT_SECONDS:
                    log.warning("what came of the push of %s could not be reported: %r", row.id, away)
                    return
            except Problem as late:
                # Its session or its service ended meanwhile, or a sweep was faster: this attempt counts no more.
                log.debug("what came of the push of %s counts no more: %r", row.id, late)
                return
            await asyncio.sleep(delay(REPORT, attempt=tries, chance=random.random()) / 1000)

    # -- tasks ---------------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s failed", task.get_name(), exc_info=error)


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
