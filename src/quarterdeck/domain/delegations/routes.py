"""The route table of delegations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from quarterdeck.core import idempotency, paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.ids import new_id
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.delegations import operations, rules
from quarterdeck.domain.delegations.model import (
    Authority,
    Delegate,
    DelegateBody,
    Delegated,
    Edge,
    EdgeExplanation,
    EdgeFilter,
    EdgeList,
    EdgeRef,
    EdgesOfSessionQuery,
    EdgeView,
    ListEdgesQuery,
    Revoke,
    Revoked,
    RevokedView,
    RevokeQuery,
    Traversal,
    TraverseQuery,
)
from quarterdeck.domain.sessions.model import SessionRef
from quarterdeck.engine.transaction import Engine, Tx

LISTING = "delegations"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DelegationDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit_delegate: Callable[[Delegate], Awaitable[Delegated]]
    submit_revoke: Callable[[Revoke], Awaitable[Revoked]]
    submit_show: Callable[[EdgeRef], Awaitable[Edge]]
    finish: Callable[[str, str], Awaitable[None]]
    """Sees an ending through: of which zone, and which cascade."""

    async def delegate(self, call: Call) -> Reply:
        done = await self.submit_delegate(_asked(call))
        return Reply(rules.view(done.edge), 201 if done.created else 200)

    async def show(self, call: Call) -> EdgeView:
        return rules.view(await self.submit_show(_edge_ref(call)))

    async def revoke(self, call: Call) -> RevokedView:
        query = call.query
        assert isinstance(query, RevokeQuery)
        ask = Revoke(call.zone, call.params["id"], call.caller, query.keep_sessions, call.trace)
        done = await self.submit_revoke(ask)
        if done.cascade_id is not None:
            await self.finish(call.zone, done.cascade_id)
        return RevokedView(done.revoked_edges, done.affected_sessions, done.terminated_agents)

    async def list_all(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListEdgesQuery)
        wanted = EdgeFilter(
            call.zone,
            query.limit,
            source=query.source,
            target=query.target,
            status=query.status,
            bearer=call.caller.bearer,
        )
        return await self._page(call, query.cursor, wanted, operations.page)

    async def inbound(self, call: Call) -> Reply:
        return await self._of_session(call, EdgeFilter(call.zone, 0, target=call.params["id"]))

    async def outbound(self, call: Call) -> Reply:
        return await self._of_session(call, EdgeFilter(call.zone, 0, source=call.params["id"]))

    async def traverse(self, call: Call) -> Traversal:
        query = call.query
        assert isinstance(query, TraverseQuery)
        return await self._read(call, lambda tx: operations.traverse(tx, _edge_ref(call), query.limit))

    async def explain(self, call: Call) -> EdgeExplanation:
        return await self._read(call, lambda tx: operations.explain(tx, _edge_ref(call)))

    async def authority(self, call: Call) -> Authority:
        return await self._read(call, lambda tx: operations.authority(tx, _session_ref(call)))

    async def _of_session(self, call: Call, wanted: EdgeFilter) -> Reply:
        query = call.query
        assert isinstance(query, EdgesOfSessionQuery)
        asked = msgspec.structs.replace(wanted, limit=query.limit, status=query.status)

        async def read(tx: Tx, page: EdgeFilter) -> list[Edge]:
            return await operations.edges_of(tx, _session_ref(call), page)

        return await self._page(call, query.cursor, asked, read)

    async def _page(
        self,
        call: Call,
        cursor: str | None,
        wanted: EdgeFilter,
        read: Callable[[Tx, EdgeFilter], Awaitable[list[Edge]]],
    ) -> Reply:
        before = paging.decode(LISTING, cursor) if cursor else None
        asked = msgspec.structs.replace(wanted, before=before, limit=wanted.limit + 1)
        edges = await self._read(call, lambda tx: read(tx, asked))
        shown, last = paging.clip([edge.id for edge in edges], wanted.limit)
        following = paging.encode(LISTING, last) if last else None
        body = EdgeList([rules.view(edge) for edge in edges[:shown]], following)
        return Reply(body, 200, call.link_to_next(following))

    async def _read(self, call: Call, operation: Callable[[Tx], Awaitable[T]]) -> T:
        """Behind the wall: the zone that is looked at, and the zone of the caller's own session."""
        return await self.engine.read(operation, zones={call.zone, call.caller.zone_id})


def _edge_ref(call: Call) -> EdgeRef:
    return EdgeRef(call.zone, call.params["id"], call.caller.bearer)


def _session_ref(call: Call) -> SessionRef:
    return SessionRef(call.zone, call.params["id"], call.caller.bearer)


def _asked(call: Call) -> Delegate:
    """What is asked of the lane: the body, with its key and digest."""
    body = call.body
    assert isinstance(body, DelegateBody)
    key = idempotency.one_key(call.idempotency_key, body.idempotency_key)
    plain = Delegate(
        id=new_id(),
        zone_id=call.zone,
        caller=call.caller,
        source_session_id=body.source_session_id,
        target_session_id=body.target_session_id,
        key=key,
        digest=idempotency.digest(rules.defaulted(body)) if key is not None else "",
        trace=call.trace,
    )
    return rules.asked(body, plain)


NARROWING = (
    "Authority only narrows: scopes and resources are a part of the parent's, hops fewer, expiry no later. With an "
    "Idempotency-Key, repeating gives 200 and the same delegation while it is active."
)
REVOKING = (
    "Takes all that are derived from it, and ends each session that no active delegation is left to, with its subtree; "
    "`keep_sessions=true` lets them run on without the authority. Answered when all of them have ended; repeated, it "
    "moves nothing."
)


def routes(desk: DelegationDesk) -> list[Route]:
    base = "/zones/{zone}/delegations"
    one = base + "/{id}"
    tags = ("delegations",)
    missing = ("delegation_not_found",)
    unknown = ("agent_not_found",)
    return [
        Route(
            "POST", base, desk.delegate, "Delegate authority from one session to another", LIFECYCLE,
            body=DelegateBody, answer=EdgeView, status=201, tags=tags, description=NARROWING,
            refusals=("self_delegation_denied", "delegation_expired", "invalid_constraints", "invalid_scope",
                      "invalid_parent_edge", "invalid_issuer_application", "invalid_receiver_application",
                      "application_ownership_required", "delegation_exceeds_authority", "zone_not_found",
                      "delegation_endpoint_not_found", "delegation_not_found", "agent_suspended",
                      "delegation_cycle_denied", "idempotency_key_conflict"),
        ),
        Route(
            "GET", base, desk.list_all, "List delegations, newest first", LIFECYCLE, query=ListEdgesQuery,
            answer=EdgeList, refusals=("invalid_cursor", "zone_not_found"), tags=tags,
        ),
        Route("GET", one, desk.show, "Show a delegation", LIFECYCLE, answer=EdgeView, refusals=missing, tags=tags),
        *(
            Route(method, path, desk.revoke, "Revoke a delegation", LIFECYCLE, query=RevokeQuery, answer=RevokedView,
                  refusals=(*missing, "application_ownership_required"), tags=tags, description=REVOKING)
            for method, path in (("DELETE", one), ("PATCH", one + "/revoke"))
        ),
        *(
            Route("GET", f"{base}/{way}/{{id}}", handler, summary, LIFECYCLE, query=EdgesOfSessionQuery,
                  answer=EdgeList, refusals=(*unknown, "invalid_cursor"), tags=tags)
            for way, handler, summary in (
                ("inbound", desk.inbound, "List the delegations to a session, newest first"),
                ("outbound", desk.outbound, "List the delegations from a session, newest first"),
            )
        ),
        Route(
            "GET", one + "/traverse", desk.traverse, "Show a delegation and all that is reached from it", LIFECYCLE,
            query=TraverseQuery, answer=Traversal, refusals=missing, tags=tags,
        ),
        Route(
            "GET", one + "/explain", desk.explain, "Why a delegation is as it is, and what it would refuse", LIFECYCLE,
            answer=EdgeExplanation, refusals=missing, tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}/agents/{id}/authority", desk.authority, "By which delegations a session holds what",
            LIFECYCLE, answer=Authority, refusals=unknown, tags=tags,
        ),
    ]  # fmt: skip
