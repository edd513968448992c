"""The route table of invocations."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar

import msgspec

from quarterdeck.core import idempotency, paging
from quarterdeck.core.caller import LIFECYCLE, Caller
from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Conflict, NotFound, Problem, Unauthenticated
from quarterdeck.core.ids import new_id
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.invocations import operations, rules
from quarterdeck.domain.invocations.model import (
    Beat,
    Cancel,
    CancelBody,
    Claim,
    ClaimBody,
    Command,
    Complete,
    CompleteBody,
    CompleteItem,
    CompleteManyBody,
    Enqueue,
    EnqueueBody,
    Enqueued,
    HeartbeatBody,
    HeartbeatView,
    Invocation,
    InvocationExplanation,
    InvocationFilter,
    InvocationList,
    InvocationRef,
    InvocationSettings,
    InvocationView,
    ItemList,
    ItemView,
    LeaseList,
    Leases,
    LeaseView,
    ListQuery,
    Outcome,
    Release,
    Start,
    StartBody,
    TokenItem,
    TokensBody,
)
from quarterdeck.domain.invocations.operations.long_poll import Given, Waiters, wait_for_work
from quarterdeck.domain.invocations.rules.errors import key_required
from quarterdeck.engine.long_poll import leases_of
from quarterdeck.engine.transaction import Engine, Tx

log = logging.getLogger("quarterdeck.invocations")
LISTING = "invocations"
SPOKEN = ("stale_attempt", "attempt_token_required", "invocation_not_completable")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InvocationDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit: Callable[[Command], asyncio.Future[Outcome]]
    submit_show: Callable[[InvocationRef], Awaitable[Invocation]]
    waiters: Waiters
    settings: InvocationSettings

    # -- calling -------------------------------------------------------------------------------------------------

    async def enqueue(self, call: Call) -> Reply:
        done = await self.submit(_call(call))
        assert isinstance(done, Enqueued)
        return Reply(rules.view(done.invocation), 201 if done.created else 200)

    async def show(self, call: Call) -> InvocationView:
        return rules.view(await self.submit_show(_ref(call)))

    async def list_all(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListQuery)
        wanted = InvocationFilter(
            call.zone,
            query.limit + 1,
            paging.decode(LISTING, query.cursor) if query.cursor else None,
            query.status,
            query.service_id,
            query.source_session_id,
            query.target_session_id,
            call.caller.bearer,
        )
        rows = await self._read(call, lambda tx: operations.page(tx, wanted))
        shown, last = paging.clip([row.id for row in rows], query.limit)
        following = paging.encode(LISTING, last) if last else None
        body = InvocationList([rules.view(row) for row in rows[:shown]], following)
        return Reply(body, 200, call.link_to_next(following))

    async def cancel(self, call: Call) -> InvocationView:
        body = call.body
        assert isinstance(body, CancelBody)
        return rules.view(await self._one(Cancel(**_asker(call), id=call.params["id"], reason=body.reason)))

    async def explain(self, call: Call) -> InvocationExplanation:
        return await self._read(call, lambda tx: operations.explain(tx, _ref(call)))

    # -- working -------------------------------------------------------------------------------------------------

    async def claim(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, ClaimBody)
        ask = Claim(
            **_asker(call),
            service_id=call.params["service"],
            max=body.max,
            tokens=tuple(_token() for _ in range(body.max)),
            claim_id=body.claim_id,
        )
        wait_ms = min(body.wait_ms, self.settings.claim_wait_max_ms)
        if wait_ms:
            given = await wait_for_work(ask, self._claim, self.waiters, wait_ms / 1000)
        else:
            given = await self._claim(ask)
        leases = LeaseList([rules.lease_view(row) for row in given])
        return Reply(leases, unsent=lambda: self.waiters.unwanted(given))

    async def _claim(self, ask: Claim) -> Given:
        return await leases_of(self.submit(ask), _items, self.waiters)

    def release(self, given: Sequence[Invocation]) -> None:
        """Leases that reached nobody are as if they had never been given."""
        for row in given:
            ask = Release(
                zone_id=row.zone_id, id=row.id, token=row.attempt_token or "", lease_expires_at=row.lease_expires_at
            )
            self.submit(ask).add_done_callback(_released)

    async def start(self, call: Call) -> LeaseView:
        body = call.body
        assert isinstance(body, StartBody)
        ask = Start(**_asker(call), id=call.params["id"], token=_token(), claim_id=body.claim_id)
        return rules.lease_view(await self._one(ask))

    async def complete(self, call: Call) -> InvocationView:
        body = call.body
        assert isinstance(body, CompleteBody)
        return rules.view(await self._one(_completion(call, call.params["id"], body)))

    async def heartbeat(self, call: Call) -> HeartbeatView:
        body = call.body
        assert isinstance(body, HeartbeatBody)
        row = await self._one(Beat(**_asker(call), id=call.params["id"], token=body.attempt_token))
        return HeartbeatView(row.cancel_requested_at is not None, iso(row.lease_expires_at or row.updated_at))

    async def complete_many(self, call: Call) -> ItemList:
        body = call.body
        assert isinstance(body, CompleteManyBody)
        return await self._many([_completion(call, item.id, item) for item in body.items])

    async def heartbeat_many(self, call: Call) -> ItemList:
        return await self._many([Beat(**_asker(call), id=item.id, token=item.attempt_token) for item in _tokens(call)])

    async def release_many(self, call: Call) -> ItemList:
        return await self._many(
            [Release(**_asker(call), id=item.id, token=item.attempt_token) for item in _tokens(call)]
        )

    # -- shared --------------------------------------------------------------------------------------------------

    async def _one(self, ask: Command) -> Invocation:
        row = await self.submit(ask)
        assert isinstance(row, Invocation)
        return row

    async def _many(self, asks: Sequence[Complete | Beat | Release]) -> ItemList:
        """Each its own outcome: one that is refused costs the others nothing."""
        done = await asyncio.gather(*(self.submit(ask) for ask in asks), return_exceptions=True)
        if strangers := [outcome for outcome in done if isinstance(outcome, Unauthenticated)]:
            # All were asked by the same: whoever may not speak for one may not speak for any.
            raise strangers[0]
        return ItemList([_item(ask, outcome) for ask, outcome in zip(asks, done, strict=True)])

    async def _read(self, call: Call, operation: Callable[[Tx], Awaitable[T]]) -> T:
        """Behind the wall: the zone that is looked at, and the zone of the caller's own session."""
        return await self.engine.read(operation, zones={call.zone, call.caller.zone_id})


def _items(claimed: Outcome) -> Given:
    assert isinstance(claimed, Leases)
    return claimed.items


def _released(done: asyncio.Future[Outcome]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, NotFound | Conflict):
        # It ends by its lease then; the attempt counts, and whoever reads this knows why.
        log.warning("a lease that reached nobody could not be given back: %r", error)


class Asker(TypedDict):
    """What every command says of whoever asks."""

    zone_id: str
    caller: Caller
    trace: str | None


def _asker(call: Call) -> Asker:
    return {"zone_id": call.zone, "caller": call.caller, "trace": call.trace}


def _ref(call: Call) -> InvocationRef:
    return InvocationRef(call.zone, call.params["id"], call.caller.bearer)


def _token() -> str:
    return secrets.token_urlsafe(16)


def _call(call: Call) -> Enqueue:
    body = call.body
    assert isinstance(body, EnqueueBody)
    key = idempotency.one_key(call.idempotency_key, body.idempotency_key)
    if key is None:
        raise key_required()
    source = body.source_session_id
    if source is None and call.caller.zone_id == call.zone:
        source = call.caller.session_id
    defaulted = msgspec.structs.replace(body, idempotency_key=None, source_session_id=source)
    return Enqueue(
        **_asker(call),
        id=new_id(),
        service_id=body.service_id,
        key=key,
        digest=idempotency.digest(defaulted),
        method=body.method,
        params=_text(body.params),
        metadata=_text(body.metadata),
        source_session_id=source,
        target_session_id=body.target_session_id,
        timeout_ms=body.timeout_ms,
        policy=body.retry_policy,
    )


def _completion(call: Call, invocation_id: str, said: CompleteBody | CompleteItem) -> Complete:
    return Complete(
        **_asker(call),
        id=invocation_id,
        status=said.status,
        result=_text(said.result) if said.status == "succeeded" or said.result is not None else None,
        error=_text(said.error) if said.status == "failed" or said.error is not None else None,
        retryable=said.retryable,
        token=said.attempt_token,
    )


def _tokens(call: Call) -> list[TokenItem]:
    body = call.body
    assert isinstance(body, TokensBody)
    return body.items


def _item(ask: Complete | Beat | Release, outcome: Outcome | BaseException) -> ItemView:
    if isinstance(outcome, Problem):
        told = {"error": outcome.code, "detail": outcome.detail, "status": outcome.status}
        return ItemView(ask.id, error=told)
    if isinstance(outcome, BaseException):
        raise outcome
    assert isinstance(outcome, Invocation)
    if not isinstance(ask, Beat):
        return ItemView(ask.id, outcome.status)
    lease = iso(outcome.lease_expires_at or outcome.updated_at)
    return ItemView(ask.id, outcome.status, outcome.cancel_requested_at is not None, lease)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _twice_spelt(desk: InvocationDesk, one: str) -> list[Route]:
    """Real clients say PATCH where the norm is POST."""
    tags = ("invocations",)
    served = ("invocation_not_found", "service_ownership_required")
    return [
        route
        for method in ("POST", "PATCH")
        for route in (
            Route(
                method, one + "/start", desk.start, "Begin an attempt that was learnt of elsewhere", LIFECYCLE,
                body=StartBody, answer=LeaseView, tags=tags,
                refusals=(*served, "invocation_not_startable", "agent_suspended"),
                description="To whoever is first. The same `claim_id` gives the same attempt again.",
            ),
            Route(
                method, one + "/complete", desk.complete, "Report the outcome of an attempt", LIFECYCLE,
                body=CompleteBody, answer=InvocationView, refusals=(*served, *SPOKEN), tags=tags,
                description="A failed attempt is followed by another, unless `retryable` is false or it was the "
                "last. Said twice with the same token, it is answered twice.",
            ),
            Route(
                method, one + "/cancel", desk.cancel, "Ask for an invocation to be canceled", LIFECYCLE,
                body=CancelBody, answer=InvocationView, tags=tags,
                refusals=("invocation_not_found", "invoker_ownership_required", "invocation_not_cancelable"),
                description="What waits is canceled at once; what runs, when its holder says so or its lease or "
                "deadline passes.",
            ),
        )
    ]  # fmt: skip


def routes(desk: InvocationDesk) -> list[Route]:
    base = "/zones/{zone}/invocations"
    one = base + "/{id}"
    tags = ("invocations",)
    missing = ("invocation_not_found",)
    served = (*missing, "service_ownership_required")
    spoken = (*served, *SPOKEN)
    return [
        Route(
            "POST", base, desk.enqueue, "Call a service, durably", LIFECYCLE, body=EnqueueBody, answer=InvocationView,
            status=201, tags=tags, description="201, or 200 with what the same key stands for already.",
            refusals=("idempotency_key_required", "idempotency_key_conflict", "agent_service_not_found",
                      "agent_session_not_found", "agent_suspended", "invoker_ownership_required", "zone_ended",
                      "zone_not_found"),
        ),
        Route(
            "GET", base, desk.list_all, "List invocations, newest first", LIFECYCLE, query=ListQuery,
            answer=InvocationList, refusals=("invalid_cursor",), tags=tags,
        ),
        Route(
            "POST", base + "/complete", desk.complete_many, "Report the outcomes of many attempts", LIFECYCLE,
            body=CompleteManyBody, answer=ItemList, tags=tags, description="Each item has its own outcome.",
        ),
        Route(
            "POST", base + "/heartbeat", desk.heartbeat_many, "Prolong the leases of many attempts", LIFECYCLE,
            body=TokensBody, answer=ItemList, tags=tags, description="Each item has its own outcome.",
        ),
        Route(
            "POST", base + "/release", desk.release_many, "Give leases back", LIFECYCLE, body=TokensBody, tags=tags,
            answer=ItemList, description="As if the attempts had never begun: they do not count.",
        ),
        Route(
            "GET", one, desk.show, "Show an invocation", LIFECYCLE, answer=InvocationView, refusals=missing, tags=tags,
        ),
        Route(
            "GET", one + "/explain", desk.explain, "Why an invocation is as it is", LIFECYCLE,
            answer=InvocationExplanation, refusals=missing, tags=tags,
        ),
        *_twice_spelt(desk, one),
        Route(
            "POST", one + "/heartbeat", desk.heartbeat, "Prolong an attempt's lease", LIFECYCLE, body=HeartbeatBody,
            answer=HeartbeatView, refusals=spoken, tags=tags,
        ),
        Route(
            "POST", "/zones/{zone}/services/{service}/claim", desk.claim, "Take work of a service", LIFECYCLE,
            body=ClaimBody, answer=LeaseList, waits=True, tags=tags,
            refusals=("agent_service_not_found", "service_ownership_required", "service_is_pushed", "agent_suspended"),
            description="Leases up to `max` invocations to the caller; waits up to `wait_ms` if there are none. The "
            "same `claim_id` gives the same leases again.",
        ),
    ]  # fmt: skip
