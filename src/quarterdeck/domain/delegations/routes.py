"""Routes for delegations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import idempotency
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.ids import new_id
from quarterdeck.core.paging import Listing, Page
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.delegations.model import (
    Authority,
    Delegate,
    DelegateBody,
    DelegatedEdge,
    Edge,
    EdgeExplanation,
    EdgeFilter,
    EdgeRef,
    EdgesOfSessionQuery,
    EdgeView,
    ListEdgesQuery,
    Revoke,
    RevokedView,
    RevokeQuery,
    RevokeResult,
    Traversal,
    TraverseQuery,
)
from quarterdeck.domain.delegations.operations import reads
from quarterdeck.domain.delegations.rules import constraints, states
from quarterdeck.domain.sessions.model import SessionRef
from quarterdeck.engine.transaction import Engine

LISTING = Listing[Edge]("delegations")


@dataclass(frozen=True, slots=True)
class DelegationHandlers:
    engine: Engine
    submit_delegate: Callable[[Delegate], Awaitable[DelegatedEdge]]
    submit_revoke: Callable[[Revoke], Awaitable[RevokeResult]]
    submit_show: Callable[[EdgeRef], Awaitable[Edge]]
    finish_cascade: Callable[[str, str], Awaitable[None]]
    """(zone id, cascade id): runs the cascade to completion."""

    async def delegate(self, call: Call[DelegateBody, None]) -> Reply[EdgeView]:
        result = await self.submit_delegate(_delegate_command(call))
        return Reply(states.view(result.edge), 201 if result.created else 200)

    async def show(self, call: Call[None, None]) -> EdgeView:
        return states.view(await self.submit_show(_edge_ref(call)))

    async def revoke(self, call: Call[None, RevokeQuery]) -> RevokedView:
        command = Revoke(call.zone_id, call.params["id"], call.caller, call.query.keep_sessions, call.trace)
        result = await self.submit_revoke(command)
        if result.cascade_id is not None:
            await self.finish_cascade(call.zone_id, result.cascade_id)
        return RevokedView(result.revoked_edges, result.affected_sessions, result.terminated_agents)

    async def list_delegations(self, call: Call[None, ListEdgesQuery]) -> Reply[Page[EdgeView]]:
        query = call.query
        filters = EdgeFilter(**LISTING.page_fields(call), source=query.source, target=query.target, status=query.status)
        rows = await self.engine.read(lambda tx: reads.list_edges(tx, filters), zones=call.zones)
        return LISTING.reply(call, rows, states.view, Page)

    async def list_inbound(self, call: Call[None, EdgesOfSessionQuery]) -> Reply[Page[EdgeView]]:
        return await self._list_session_edges(
            call, EdgeFilter(**LISTING.page_fields(call), status=call.query.status, target=call.params["id"])
        )

    async def list_outbound(self, call: Call[None, EdgesOfSessionQuery]) -> Reply[Page[EdgeView]]:
        return await self._list_session_edges(
            call, EdgeFilter(**LISTING.page_fields(call), status=call.query.status, source=call.params["id"])
        )

    async def traverse(self, call: Call[None, TraverseQuery]) -> Traversal:
        return await self.engine.read(
            lambda tx: reads.traverse(tx, _edge_ref(call), call.query.limit), zones=call.zones
        )

    async def explain(self, call: Call[None, None]) -> EdgeExplanation:
        return await self.engine.read(lambda tx: reads.explain(tx, _edge_ref(call)), zones=call.zones)

    async def show_authority(self, call: Call[None, None]) -> Authority:
        return await self.engine.read(lambda tx: reads.read_authority(tx, _session_ref(call)), zones=call.zones)

    async def _list_session_edges(
        self, call: Call[None, EdgesOfSessionQuery], filters: EdgeFilter
    ) -> Reply[Page[EdgeView]]:
        rows = await self.engine.read(
            lambda tx: reads.list_session_edges(tx, _session_ref(call), filters), zones=call.zones
        )
        return LISTING.reply(call, rows, states.view, Page)


def _edge_ref(call: AnyCall) -> EdgeRef:
    return EdgeRef(call.zone_id, call.params["id"], call.caller.bearer)


def _session_ref(call: AnyCall) -> SessionRef:
    return SessionRef(call.zone_id, call.params["id"], call.caller.bearer)


def _delegate_command(call: Call[DelegateBody, None]) -> Delegate:
    """Build the command from the body, the idempotency key and the digest of the body."""
    body = call.body
    key = idempotency.request_key(call.idempotency_key, body.idempotency_key)
    base = Delegate(
        id=new_id(),
        zone_id=call.zone_id,
        caller=call.caller,
        source_session_id=body.source_session_id,
        target_session_id=body.target_session_id,
        idempotency_key=key,
        request_digest=idempotency.request_digest(constraints.normalize_body(body)) if key is not None else "",
        trace=call.trace,
    )
    return constraints.build_command(body, base)


DELEGATE_DESCRIPTION = (
    "Authority only narrows: scopes and resources must be a subset of the parent's, with fewer hops and no later "
    "expiry. A repeated request with the same Idempotency-Key returns 200 and the same delegation while it is active."
)
REVOKE_DESCRIPTION = (
    "Also revokes all derived delegations, and terminates each target session that has no other active delegation, "
    "with its subtree. With `keep_sessions=true`, no session is terminated; the sessions continue without the "
    "authority. Without it, the response is sent after all these sessions are terminated. A repeated request changes "
    "nothing."
)


def routes(handlers: DelegationHandlers) -> list[Route]:
    base_path = "/zones/{zone}/delegations"
    edge_path = base_path + "/{id}"
    tags = ("delegations",)
    not_found_errors = ("delegation_not_found",)
    session_errors = ("agent_not_found",)
    return [
        Route(
            "POST", base_path, handlers.delegate, "Delegate authority from one session to another", LIFECYCLE,
            status=201, tags=tags, description=DELEGATE_DESCRIPTION,
            errors=("self_delegation_denied", "delegation_expired", "invalid_constraints", "invalid_scope",
                    "invalid_parent_edge", "invalid_issuer_application", "invalid_receiver_application",
                    "application_ownership_required", "delegation_exceeds_authority", "zone_not_found",
                    "delegation_endpoint_not_found", "delegation_not_found", "agent_suspended",
                    "delegation_cycle_denied", "idempotency_key_conflict"),
        ),
        Route(
            "GET", base_path, handlers.list_delegations, "List delegations, newest first", LIFECYCLE,
            errors=("invalid_cursor", "zone_not_found"), tags=tags,
        ),
        Route("GET", edge_path, handlers.show, "Show a delegation", LIFECYCLE, errors=not_found_errors, tags=tags),
        *(
            Route(
                method, path, handlers.revoke, "Revoke a delegation", LIFECYCLE,
                errors=(*not_found_errors, "application_ownership_required"), tags=tags, description=REVOKE_DESCRIPTION,
            )
            for method, path in (("DELETE", edge_path), ("PATCH", edge_path + "/revoke"))
        ),
        *(
            Route(
                "GET", f"{base_path}/{direction}/{{id}}", handler, summary, LIFECYCLE,
                errors=(*session_errors, "invalid_cursor"), tags=tags,
            )
            for direction, handler, summary in (
                ("inbound", handlers.list_inbound, "List the delegations to a session, newest first"),
                ("outbound", handlers.list_outbound, "List the delegations from a session, newest first"),
            )
        ),
        Route(
            "GET", edge_path + "/traverse", handlers.traverse,
            "Show a delegation and all delegations reachable from it", LIFECYCLE, errors=not_found_errors, tags=tags,
        ),
        Route(
            "GET", edge_path + "/explain", handlers.explain, "Explain a delegation's state and limits", LIFECYCLE,
            errors=not_found_errors, tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}/agents/{id}/authority", handlers.show_authority,
            "Show a session's authority and the delegations that grant it", LIFECYCLE, errors=session_errors, tags=tags,
        ),
    ]  # fmt: skip
