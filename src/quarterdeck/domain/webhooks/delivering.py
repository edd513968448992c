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
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

from quarterdeck.core import webhooks
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.core.pushkeys import Secrets
from quarterdeck.core.retry import Policy, delay
from quarterdeck.domain.invocations.rules.slots import SlotLimits, Slots
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
from quarterdeck.domain.webhooks.operations.looking import Waiting, to_take
from quarterdeck.domain.webhooks.rules import lives
from quarterdeck.engine.outward import Outward, OutwardError, Overlong, Refused, Request, TimedOut
from quarterdeck.engine.tx import Engine
from quarterdeck.engine.wake import Wakes
from quarterdeck.store.port import StoreError

log = logging.getLogger("quarterdeck.webhooks")
LOOK_MAX = 100
"""Endpoints that one look finds at most."""
SETTLE_MAX = 500
"""Deliveries that one transaction ends."""
GAP_SECONDS = 0.005
QUIET_GAP_SECONDS = 0.05
"""Between two looks at least, however often it is woken: after one that found something, and after one that found
nothing."""
SHARE, QUIET_SHARE = 0.2, 0.05
"""Of the time, for looking."""
FAILED_GAP_SECONDS = 0.5
"""After one that failed."""
MARGIN_MS = 15_000
"""Between the end of an attempt and that of its lease: for its report."""
REPORT = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=2_000)
DELIVERED, FAILED, REFUSED, TIMED_OUT, UNANSWERED = (
    "delivered",
    "failed",
    "refused",
    "timed_out",
    "unanswered",
)
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


class Deliverer:
    def __init__(self, means: Means, settings: WebhookSettings, grace_seconds: float) -> None:
        self._means = means
        self._poll_seconds = settings.webhook_poll_ms / 1000
        self._timeout_seconds = settings.webhook_timeout_ms / 1000
        self._lease_ms = settings.webhook_timeout_ms + MARGIN_MS
        self._grace_seconds = grace_seconds
        self._slots = Slots(
            SlotLimits(
                settings.webhook_concurrency,
                settings.webhook_zone_concurrency,
                settings.webhook_endpoint_concurrency,
            )
        )
        self._aside: dict[Ref, float] = {}
        """Endpoints whose deliveries could not be taken, and until when nobody tries again."""
        self._stir = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained_at: float | None = None
        self.counts: Counter[str] = Counter()
        """Attempts, by what came of them."""

    def __len__(self) -> int:
        """Attempts under way."""
        return len(self._slots)

    def start(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._run(), name="deliverer")

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
            log.warning("%d deliveries were cut; they are sent again when their lease has ended", len(cut))
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
            log.debug("cannot look for what is to be delivered: %s", error)
        except Exception:  # nobody would notice the end of this task: nothing would be delivered any more
            log.exception("looking for what is to be delivered failed")
        return FAILED_GAP_SECONDS, FAILED_GAP_SECONDS

    async def _look(self) -> tuple[float, float]:
        if self._slots.is_full():
            # Whoever gives a slot back stirs.
            return self._poll_seconds, GAP_SECONDS
        full, began = self._passed_over(), asyncio.get_running_loop().time()
        found = await self._means.everywhere.read(lambda tx: to_take(tx, LOOK_MAX, full))
        took = asyncio.get_running_loop().time() - began
        due = [each for each in found if each.at <= each.now or not each.enabled]
        for each in due:
            self._turn_to(each)
        if len(due) == LOOK_MAX:
            self._stir.set()
        ahead = [(each.at - each.now) / 1000 for each in found if each.enabled and each.at > each.now]
        pause = min([self._poll_seconds, *ahead])
        gap, share = (GAP_SECONDS, SHARE) if due else (QUIET_GAP_SECONDS, QUIET_SHARE)
        return pause, min(max(min(gap, pause), took / share), self._poll_seconds)

    def _turn_to(self, found: Waiting) -> None:
        """The slots are kept before anything is waited for, so that the next look leaves it alone."""
        if number := self._slots.free(found.ref):
            self._slots.take(found.ref, number)
            verb = self._take if found.enabled else self._settle
            self._begin(verb(found.ref, number), f"webhook {verb.__name__} {found.id}")

    def _passed_over(self) -> list[tuple[str, str | None]]:
        now = asyncio.get_running_loop().time()
        self._aside = {ref: until for ref, until in self._aside.items() if until > now}
        zones: list[tuple[str, str | None]] = [(zone_id, None) for zone_id in self._slots.full_zones()]
        return [*zones, *self._slots.full_services(), *self._aside]

    # -- taking --------------------------------------------------------------------------------------------------

    async def _take(self, ref: Ref, number: int) -> None:
        """Takes what waits for an endpoint, up to the slots that were kept for it, and begins to send it."""
        kept = 0
        try:
            began = asyncio.get_running_loop().time()
            taken = await self._means.take(Take(*ref, number, self._lease_ms))
            if taken.endpoint is None or self._drained_at is not None:
                # What was taken by a server that stops is due again when its lease has ended.
                return
            for row in taken.deliveries:
                attempt = Attempt(row, taken.endpoint, taken.at, began + self._lease_ms / 1000)
                self._begin(self._send(attempt), f"webhook {row.id}")
            kept = len(taken.deliveries)
        except Problem as problem:
            self._put_aside(ref, problem)
        finally:
            self._slots.give(ref, number - kept)
            if kept == number:
                self._stir.set()

    async def _settle(self, ref: Ref, number: int) -> None:
        """Ends what waits for an endpoint that hears of nothing any more."""
        try:
            while self._drained_at is None:
                settled = await self._means.settle(Settle(*ref, SETTLE_MAX))
                if settled.number < SETTLE_MAX:
                    return
        except Problem as problem:
            self._put_aside(ref, problem)
        finally:
            self._slots.give(ref, number)

    def _put_aside(self, ref: Ref, problem: Problem) -> None:
        log.debug("what waits for the endpoint %s is left for a while: %r", ref[1], problem)
        self._aside[ref] = asyncio.get_running_loop().time() + self._poll_seconds

    # -- sending -------------------------------------------------------------------------------------------------

    async def _send(self, attempt: Attempt) -> None:
        try:
            verdict = await self._ask(attempt)
            self.counts[verdict.code] += 1
            await self._report(attempt, verdict)
        finally:
            self._slots.give(attempt.endpoint.ref, 1)
            self._stir.set()

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
        return _by(answer.status, lives.wait_of(answer.status, answer.headers.get("retry-after"), attempt.at))

    def _request(self, attempt: Attempt) -> Request:
        endpoint, row = attempt.endpoint, attempt.row
        numbers = lives.secret_numbers(endpoint, attempt.at)
        secrets = [self._means.secrets(*endpoint.ref, number) for number in numbers]
        body = row.body.encode()
        headers = [
            ("Content-Type", "application/json"),
            *webhooks.signed(row.id, attempt.at, body, secrets),
        ]
        if row.trace is not None:
            headers.append(("traceparent", row.trace))
        return Request("POST", endpoint.url, headers, body, asker=endpoint.zone_id)

    async def _report(self, attempt: Attempt, verdict: Verdict) -> None:
        """Says what came of it, until somebody has heard or the lease has ended."""
        ask, tries = _reporting(attempt.row, verdict), 0
        while True:
            tries += 1
            try:
                reported = await self._means.report(ask)
                break
            except Unavailable as away:
                if asyncio.get_running_loop().time() > attempt.leased_until:
                    log.warning("what came of the delivery %s could not be reported: %r", ask.id, away)
                    return
            await asyncio.sleep(delay(REPORT, attempt=tries, chance=random.random()) / 1000)
        if reported.ends is not None:
            await self._disable(attempt.endpoint, reported.ends)

    async def _disable(self, endpoint: Endpoint, why: Why) -> None:
        try:
            await self._means.submit(
                Disable(zone_id=endpoint.zone_id, id=endpoint.id, why=why, url=endpoint.url)
            )
        except Problem as problem:
            # It was removed meanwhile; or the database is away, and its next failure finds the same.
            log.info("the endpoint %s was not disabled: %r", endpoint.id, problem)

    # -- tasks ---------------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s failed", task.get_name(), exc_info=error)


def _by(status: int, wait_ms: Millis = 0) -> Verdict:
    why = lives.refusal(status)
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
