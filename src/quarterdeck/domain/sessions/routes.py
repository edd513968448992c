"""The route table of sessions."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from quarterdeck.core import idempotency, paging
from quarterdeck.core.caller import ADMIN, LIFECYCLE
from quarterdeck.core.errors import Conflict, Invalid
from quarterdeck.core.ids import new_id
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.sessions import operations, rules
from quarterdeck.domain.sessions.model import (
    ChildrenQuery,
    Ended,
    ExplainSpawnQuery,
    Held,
    Hold,
    ListQuery,
    Receipt,
    Resumed,
    Session,
    SessionExplanation,
    SessionFilter,
    SessionList,
    SessionRef,
    SessionTree,
    SessionView,
    Spawn,
    SpawnBody,
    Spawned,
    SpawnExplanation,
    StopQuery,
    StopZone,
    Suspended,
    Terminate,
    TerminateQuery,
    Verb,
)
from quarterdeck.domain.zones.model import DEFAULT_ZONE
from quarterdeck.engine.transaction import Engine, Tx

LISTING = "agents"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit_spawn: Callable[[Spawn], Awaitable[Spawned]]
    submit_hold: Callable[[Hold], Awaitable[Held]]
    submit_show: Callable[[SessionRef], Awaitable[Session]]
    finisher: operations.Finisher
    explainer: operations.Explainer

    async def spawn(self, call: Call) -> Reply:
        spawned = await self.submit_spawn(_asked(call))
        return Reply(rules.view(spawned.session), 201 if spawned.created else 200)

    async def show(self, call: Call) -> SessionView:
        return rules.view(await self.submit_show(_ref(call)))

    async def list_all(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListQuery)
        return await self._page(
            call,
            query.cursor,
            SessionFilter(
                call.zone,
                query.limit,
                status=query.status,
                application_id=query.application_id,
                parent_id=query.parent_id,
                root_id=query.root_id,
                bearer=call.caller.bearer,
            ),
        )

    async def children(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ChildrenQuery)
        await self.submit_show(_ref(call))
        wanted = SessionFilter(
            call.zone, query.limit, status=query.status, parent_id=call.params["id"], bearer=call.caller.bearer
        )
        return await self._page(call, query.cursor, wanted)

    async def tree(self, call: Call) -> SessionTree:
        found = await self._read(call, lambda tx: operations.subtree(tx, _ref(call)))
        return SessionTree(call.params["id"], [rules.view(session) for session in found])

    async def suspend(self, call: Call) -> Suspended:
        return Suspended(await self._hold(call, Verb.SUSPEND))

    async def resume(self, call: Call) -> Resumed:
        return Resumed(await self._hold(call, Verb.RESUME))

    async def terminate(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, TerminateQuery)
        ask = Terminate(call.zone, call.params["id"], query.reason, call.caller, call.trace)
        began = time.monotonic()
        ended = await self.finisher.end(ask)
        return Reply(await self._receipt(call, ended, began)) if query.receipt else Reply(None, 204)

    async def stop_zone(self, call: Call) -> Receipt:
        query = call.query
        assert isinstance(query, StopQuery)
        began = time.monotonic()
        ended = await self.finisher.stop_zone(StopZone(call.zone, query.reason, call.caller, trace=call.trace))
        return await self._receipt(call, ended, began)

    async def end_zone(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, TerminateQuery)
        if call.zone == DEFAULT_ZONE:
            raise Conflict("zone_is_default", "The zone 'default' is always there. It can be stopped and frozen.")
        began = time.monotonic()
        ended = await self.finisher.stop_zone(
            StopZone(call.zone, query.reason, call.caller, ends=True, trace=call.trace)
        )
        return Reply(await self._receipt(call, ended, began)) if query.receipt else Reply(None, 204)

    async def explain(self, call: Call) -> SessionExplanation:
        return await self._read(call, lambda tx: self.explainer.session(tx, _ref(call), call.caller))

    async def explain_spawn(self, call: Call) -> SpawnExplanation:
        query = call.query
        assert isinstance(query, ExplainSpawnQuery)
        ask = Spawn("", call.zone, call.caller, query.application_id, "", query.parent_id)
        return await self._read(call, lambda tx: self.explainer.spawn(tx, ask))

    async def _hold(self, call: Call, verb: Literal[Verb.SUSPEND, Verb.RESUME]) -> int:
        held = await self.submit_hold(Hold(call.zone, call.params["id"], verb, call.caller, call.trace))
        return held.moved

    async def _receipt(self, call: Call, ended: Ended, began: float) -> Receipt:
        took = round((time.monotonic() - began) * 1000)
        return await self._read(call, lambda tx: operations.receipt(tx, ended, took))

    async def _read(self, call: Call, operation: Callable[[Tx], Awaitable[T]]) -> T:
        """Behind the wall: the zone that is looked at, and the zone of the caller's own session."""
        return await self.engine.read(operation, zones={call.zone, call.caller.zone_id})

    async def _page(self, call: Call, cursor: str | None, wanted: SessionFilter) -> Reply:
        before = paging.decode(LISTING, cursor) if cursor else None
        asked = msgspec.structs.replace(wanted, before=before, limit=wanted.limit + 1)
        sessions = await self._read(call, lambda tx: operations.page(tx, asked))
        shown, last = paging.clip([session.id for session in sessions], wanted.limit)
        following = paging.encode(LISTING, last) if last else None
        body = SessionList([rules.view(session) for session in sessions[:shown]], following)
        return Reply(body, 200, call.link_to_next(following))


def _ref(call: Call) -> SessionRef:
    return SessionRef(call.zone, call.params["id"], call.caller.bearer)


def _asked(call: Call) -> Spawn:
    """What is asked of the lane: the body, defaulted from the token, with its key and digest."""
    body = call.body
    assert isinstance(body, SpawnBody)
    sid = body.session_sid if body.session_sid is not None else call.caller.sid
    if not sid:
        raise Invalid("session_sid_required", "Give session_sid, or a token with a sid.", field="session_sid")
    if not call.caller.may_act_for(body.application_id, "spawn_for"):
        raise rules.ownership_required(body.application_id)
    key = idempotency.one_key(call.idempotency_key, body.idempotency_key)
    defaulted = msgspec.structs.replace(body, session_sid=sid, idempotency_key=None) if key is not None else None
    return Spawn(
        id=new_id(),
        zone_id=call.zone,
        caller=call.caller,
        application_id=body.application_id,
        session_sid=sid,
        parent_id=body.parent_id,
        kind=body.kind,
        capabilities=_text(body.capabilities) if body.capabilities else "[]",
        metadata=_text(body.metadata) if body.metadata else "{}",
        ttl_seconds=body.ttl_seconds,
        key=key,
        digest=idempotency.digest(defaulted) if defaulted else "",
        trace=call.trace,
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


SUSPENDING = (
    "How many fell asleep: none, if an ancestor's suspension held it already, and the flag is set all the same. A "
    "suspended session keeps its place and its time runs on; it can be given nothing to spawn."
)
RESUMING = "How many woke: those that no other flag holds."


def routes(desk: SessionDesk) -> list[Route]:
    base = "/zones/{zone}/agents"
    one = base + "/{id}"
    tags = ("sessions",)
    missing = ("agent_not_found",)
    owned = (*missing, "application_ownership_required")
    return [
        Route(
            "POST", base, desk.spawn, "Spawn a session", LIFECYCLE, body=SpawnBody, answer=SessionView, status=201,
            tags=tags, description="With an Idempotency-Key, repeating gives 200 and the same session while it lives.",
            refusals=("session_sid_required", "application_ownership_required", "parent_not_found",
                      "parent_ownership_required", "agent_suspended", "idempotency_key_conflict", "zone_frozen",
                      "zone_not_found",
                      *(bound.code for bound in rules.BOUNDS)),
        ),
        Route(
            "GET", base, desk.list_all, "List sessions, newest first", LIFECYCLE, query=ListQuery, answer=SessionList,
            refusals=("invalid_cursor",), tags=tags,
        ),
        Route("GET", one, desk.show, "Show a session", LIFECYCLE, answer=SessionView, refusals=missing, tags=tags),
        Route(
            "GET", one + "/children", desk.children, "List a session's children, newest first", LIFECYCLE,
            query=ChildrenQuery, answer=SessionList, refusals=(*missing, "invalid_cursor"), tags=tags,
        ),
        Route(
            "GET", one + "/tree", desk.tree, "Show a session with its whole subtree", LIFECYCLE, answer=SessionTree,
            refusals=missing, tags=tags,
        ),
        *(
            Route(method, f"{one}/{verb}", handler, summary, LIFECYCLE, answer=answer, tags=tags,
                  refusals=(*owned, refusal), description=meaning)
            for verb, handler, summary, answer, refusal, meaning in (
                ("suspend", desk.suspend, "Suspend a session and everything under it", Suspended,
                 "agent_not_found_or_not_active", SUSPENDING),
                ("resume", desk.resume, "Clear a session's own suspension", Resumed,
                 "agent_not_found_or_not_suspended", RESUMING),
            )
            for method in ("POST", "PATCH")
        ),
        Route(
            "DELETE", one, desk.terminate, "End a session and its whole subtree", LIFECYCLE, query=TerminateQuery,
            answer=Receipt, status=204, refusals=owned, tags=tags,
            description="204, and 204 again when repeated; with `receipt=true` 200 and what was stopped. Answered when "
            "all of it has ended; one that comes meanwhile joins the first.",
        ),
        Route(
            "GET", one + "/explain", desk.explain, "Why a session is as it is", LIFECYCLE, answer=SessionExplanation,
            refusals=missing, tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}/explain/spawn", desk.explain_spawn, "What a spawn would meet now", LIFECYCLE,
            query=ExplainSpawnQuery, answer=SpawnExplanation, refusals=("zone_not_found",), tags=tags,
        ),
        Route(
            "POST", "/zones/{zone}/stop", desk.stop_zone, "Freeze a zone and end every session in it", ADMIN,
            query=StopQuery, answer=Receipt, refusals=("zone_not_found",), tags=("zones",),
            description="The big red button. The zone stays frozen until it is thawed.",
        ),
        Route(
            "DELETE", "/zones/{zone}", desk.end_zone, "End a zone and everything in it", ADMIN, query=TerminateQuery,
            answer=Receipt, status=204, refusals=("zone_not_found", "zone_is_default"), tags=("zones",),
            description="For good: what happened in it can be read, and its id is not used again. 204 when repeated.",
        ),
    ]  # fmt: skip
