"""The route table of sessions."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from quarterdeck.core import keys, paging
from quarterdeck.core.errors import Invalid
from quarterdeck.core.ids import new_id
from quarterdeck.core.wire import LIFECYCLE, Call, Reply, Route
from quarterdeck.domain.sessions import operations, rules
from quarterdeck.domain.sessions.model import (
    ChildrenQuery,
    ListQuery,
    Receipt,
    Session,
    SessionFilter,
    SessionList,
    SessionRef,
    SessionTree,
    SessionView,
    Spawn,
    SpawnBody,
    Spawned,
    Terminate,
    TerminateQuery,
)
from quarterdeck.engine.tx import Engine

LISTING = "agents"


@dataclass(frozen=True, slots=True)
class SessionDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit_spawn: Callable[[Spawn], Awaitable[Spawned]]
    submit_terminate: Callable[[Terminate], Awaitable[Receipt]]
    submit_show: Callable[[SessionRef], Awaitable[Session]]

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
                bearer=call.caller.session_id,
            ),
        )

    async def children(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ChildrenQuery)
        await self.submit_show(_ref(call))
        wanted = SessionFilter(call.zone, query.limit, status=query.status, parent_id=call.params["id"])
        return await self._page(call, query.cursor, wanted)

    async def tree(self, call: Call) -> SessionTree:
        found = await self.engine.read(lambda tx: operations.subtree(tx, _ref(call)))
        return SessionTree(call.params["id"], [rules.view(session) for session in found])

    async def terminate(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, TerminateQuery)
        began = time.monotonic()
        receipt = await self.submit_terminate(
            Terminate(call.zone, call.params["id"], query.reason, call.caller, call.trace)
        )
        if not query.receipt:
            return Reply(None, 204)
        took = round((time.monotonic() - began) * 1000)
        return Reply(msgspec.structs.replace(receipt, duration_ms=took), 200)

    async def _page(self, call: Call, cursor: str | None, wanted: SessionFilter) -> Reply:
        before = paging.decode(LISTING, cursor) if cursor else None
        asked = msgspec.structs.replace(wanted, before=before, limit=wanted.limit + 1)
        sessions = await self.engine.read(lambda tx: operations.page(tx, asked))
        shown, last = paging.clip([session.id for session in sessions], wanted.limit)
        following = paging.encode(LISTING, last) if last else None
        body = SessionList([rules.view(session) for session in sessions[:shown]], following)
        return Reply(body, 200, call.link_to_next(following))


def _ref(call: Call) -> SessionRef:
    return SessionRef(call.zone, call.params["id"], call.caller.session_id)


def _asked(call: Call) -> Spawn:
    """What is asked of the lane: the body, defaulted from the token, with its key and digest."""
    body = call.body
    assert isinstance(body, SpawnBody)
    sid = body.session_sid if body.session_sid is not None else call.caller.sid
    if not sid:
        raise Invalid("session_sid_required", "Give session_sid, or a token with a sid.", field="session_sid")
    if not call.caller.may_act_for(body.application_id, "spawn_for"):
        raise rules.ownership_required(body.application_id)
    key = keys.one_key(call.idempotency_key, body.idempotency_key)
    defaulted = (
        msgspec.structs.replace(body, session_sid=sid, idempotency_key=None) if key is not None else None
    )
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
        digest=keys.digest(defaulted) if defaulted else "",
        trace=call.trace,
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def routes(desk: SessionDesk) -> list[Route]:
    base = "/zones/{zone}/agents"
    one = base + "/{id}"
    tags = ("sessions",)
    missing = ("agent_not_found",)
    return [
        Route(
            "POST", base, desk.spawn, "Spawn a session", LIFECYCLE, body=SpawnBody, answer=SessionView, status=201,
            tags=tags, description="With an Idempotency-Key, repeating gives 200 and the same session while it lives.",
            refusals=("session_sid_required", "application_ownership_required", "parent_not_found",
                      "parent_ownership_required", "idempotency_key_conflict", "zone_frozen", "zone_not_found",
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
        Route(
            "DELETE", one, desk.terminate, "End a session and its whole subtree", LIFECYCLE, query=TerminateQuery,
            answer=Receipt, status=204, refusals=(*missing, "application_ownership_required"), tags=tags,
            description="204, and 204 again when repeated; with `receipt=true` 200 and what was stopped.",
        ),
    ]  # fmt: skip
