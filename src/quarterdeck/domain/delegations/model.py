"""Request bodies, commands, rows, results and views of delegations."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.paging import PageFilter, PageQuery
from quarterdeck.core.routing import PathId
from quarterdeck.core.views import JsonText
from quarterdeck.domain.api_keys.model import Scope

SCOPES_MAX = 64
RESOURCES_MAX = 64
HOPS_MAX = 10
"""Maximum of `max_hops` in a request."""
UNLIMITED_HOPS = 1_000_000
"""Hops of a caller's token."""
TTL_SECONDS_MAX = 86_400
TRAVERSE_MAX = 1_000
CHAIN_MAX = 64
"""Maximum number of parents that `explain` returns, nearest first."""
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Hops = Annotated[int, Meta(ge=1, le=HOPS_MAX)]
Seconds = Annotated[int, Meta(ge=1, le=TTL_SECONDS_MAX)]
Instant = Annotated[datetime, Meta(tz=True)]


class EdgeState(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"


class EdgeVerb(StrEnum):
    REVOKE = "revoke"
    EXPIRE = "expire"


class DelegationSettings(msgspec.Struct, frozen=True):
    delegation_sweep_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often delegations past their expiry are marked expired")
    ] = 5_000
    delegation_sweep_batch: Annotated[
        int, Meta(ge=1, le=10_000, description="delegations expired or deleted in one pass")
    ] = 500
    delegation_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long revoked and expired delegations are kept")
    ] = 90.0


# -- requested ---------------------------------------------------------------------------------------------------


class Constraints(msgspec.Struct, frozen=True):
    """The constraints that the server interprets. Other constraints are stored unchanged."""

    resources: Annotated[list[Name], Meta(max_length=RESOURCES_MAX)] | None = None
    actions: Annotated[list[Name], Meta(max_length=RESOURCES_MAX)] | None = None
    max_depth: Hops | None = None
    max_hops: Hops | None = None
    budget: object = None
    ttl_seconds: Seconds | None = None
    expires_at: Instant | None = None


class DelegateBody(msgspec.Struct, frozen=True):
    source_session_id: Annotated[PathId, Meta(description="the session that lends authority")]
    target_session_id: Annotated[
        PathId,
        Meta(description="the session that receives authority", examples=["0198f3a2-7c42-7d60-8a13-5b7c9e1f2a46"]),
    ]
    issuer_application_id: Annotated[PathId, Meta(description="must be the source's application, if given")] | None = (
        None
    )
    receiver_application_id: (
        Annotated[PathId, Meta(description="must be the target's application, if given")] | None
    ) = None
    scopes: Annotated[list[Scope], Meta(max_length=SCOPES_MAX, description="the scopes that are lent")] = []
    resource_id: Annotated[Name, Meta(description="one more resource, added to constraints.resources")] | None = None
    constraints: (
        Annotated[
            dict[str, object],
            Meta(
                description="resources (at most 64; default: all), actions, max_hops or max_depth (1 to 10), budget, "
                "ttl_seconds, expires_at; other names are stored unchanged"
            ),
        ]
        | None
    ) = None
    constraints_json: Annotated[dict[str, object], Meta(description="another name for constraints")] | None = None
    expires_at: (
        Annotated[
            Instant,
            Meta(
                description="when the delegation expires; default: when its parent or one of its sessions expires, "
                "whichever is first"
            ),
        ]
        | None
    ) = None
    ttl_seconds: Annotated[Seconds, Meta(description="seconds until the delegation expires")] | None = None
    parent_edge_id: (
        Annotated[
            PathId,
            Meta(
                description="the delegation from which this one is derived; default: of the delegations to the source "
                "that cover it, the one that expires last"
            ),
        ]
        | None
    ) = None
    idempotency_key: (
        Annotated[str, Meta(description="same as the Idempotency-Key header; if both are given they must be equal")]
        | None
    ) = None


class Delegate(msgspec.Struct, frozen=True):
    """Create an edge. The id is generated before the batch, so that a repeated batch uses the same id."""

    id: str
    zone_id: str
    caller: Caller
    source_session_id: str
    target_session_id: str
    scopes: tuple[str, ...] = ()
    """Sorted, without duplicates."""
    resources: tuple[str, ...] | None = None
    """None: all resources."""
    actions: tuple[str, ...] | None = None
    budget: object = None
    hops: int | None = None
    expires_at: Millis | None = None
    ttl_seconds: int | None = None
    resource_id: str | None = None
    constraints: str = "{}"
    parent_edge_id: str | None = None
    issuer_application_id: str | None = None
    receiver_application_id: str | None = None
    idempotency_key: str | None = None
    request_digest: str = ""
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class Revoke(msgspec.Struct, frozen=True):
    """Revoke an edge and all edges derived from it."""

    zone_id: str
    edge_id: str
    caller: Caller
    keep_sessions: bool = False
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class Expire(msgspec.Struct, frozen=True):
    """Sent by a sweep: mark an edge past its `expires_at` as expired."""

    zone_id: str
    edge_id: str


class EdgeRef(msgspec.Struct, frozen=True):
    """A request to read one edge."""

    zone_id: str
    edge_id: str
    bearer: Bearer | None = None


class EdgeFilter(PageFilter, frozen=True, kw_only=True):
    source: str | None = None
    target: str | None = None
    status: EdgeState | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Edge(msgspec.Struct, frozen=True, array_like=True):
    """A row of `delegation_edges`, in the order of the `columns` lines of `queries.sql`."""

    id: str
    zone_id: str
    source_session_id: str
    target_session_id: str
    issuer_application_id: str
    receiver_application_id: str
    scopes: JsonText
    """A JSON array, sorted."""
    resource_id: str | None
    resources: JsonText | None
    """A JSON array, sorted; None: all resources."""
    hops: int
    """How many edges may still follow this one in a chain."""
    constraints_json: JsonText
    parent_edge_id: str | None
    status: EdgeState
    expires_at: Millis
    edge_version: int
    created_by: str
    trace: str | None
    ended_at: Millis | None
    ended_reason: str | None
    created_at: Millis
    updated_at: Millis


class GraphEdge(msgspec.Struct, frozen=True, array_like=True):
    """The columns of an edge that graph walks and events need."""

    zone_id: str
    id: str
    source_session_id: str
    target_session_id: str
    parent_edge_id: str | None
    scopes: JsonText
    expires_at: Millis


class ChainEdge(msgspec.Struct, frozen=True, array_like=True):
    """An edge in a chain of parents, and whether its source session has ended."""

    zone_id: str
    id: str
    parent_edge_id: str | None
    source_ended: int


class ZoneEpoch(msgspec.Struct, frozen=True, array_like=True):
    """The epoch of a zone and the bounds of its ranks, in the column order of `delegation_zone_epochs`."""

    zone_id: str
    epoch: int = 0
    ranked: int = 0
    """The epoch for which the ranks are valid. If it differs from `epoch`, a writer that does not maintain ranks has
    changed edges since."""
    has_open_cascade: int = 0
    """Whether a cascade is unfinished. Only then can a terminated session still have active edges."""
    lowest_rank: int | None = None
    highest_rank: int | None = None

    @property
    def rank_bounds(self) -> tuple[int, int]:
        return self.lowest_rank or 0, self.highest_rank or 0


class DelegatedEdge(msgspec.Struct, frozen=True):
    edge: Edge
    created: bool
    """False if an earlier request with the idempotency key created the edge."""


class RevokeResult(msgspec.Struct, frozen=True):
    revoked_edges: int = 0
    affected_sessions: int = 0
    terminated_agents: int = 0
    cascade_id: str | None = None
    """Set if further transactions must finish the cascade. All its sessions are already shown as terminated."""


# -- returned ----------------------------------------------------------------------------------------------------


class EdgeView(msgspec.Struct, frozen=True):
    id: str
    delegation_edge_id: str
    zone_id: str
    source_session_id: str
    source_agent_id: str
    target_session_id: str
    target_agent_id: str
    issuer_application_id: str
    receiver_application_id: str
    scopes: list[str]
    resource_id: str | None
    resources: Annotated[list[str], Meta(description="the resources that the scopes apply to; null: all")] | None
    max_hops: (
        Annotated[int, Meta(description="how many delegations may still follow in its chain; null: no limit")] | None
    )
    constraints_json: msgspec.Raw
    parent_edge_id: str | None
    status: Annotated[str, Meta(description="active, revoked or expired")]
    expires_at: str
    edge_version: int
    created_by: str
    ended_at: str | None
    ended_reason: str | None
    created_at: str
    updated_at: str


class RevokedView(msgspec.Struct, frozen=True):
    revoked_edges: Annotated[int, Meta(description="revoked edges, including derived ones")]
    affected_sessions: Annotated[int, Meta(description="target sessions of the revoked edges")]
    terminated_agents: Annotated[int, Meta(description="terminated sessions, including their subtrees")]


class ReachedEdge(msgspec.Struct, frozen=True):
    level: Annotated[int, Meta(description="hops from the delegation in the request, which has level 0")]
    derived: Annotated[
        bool, Meta(description="whether it is derived from the delegation in the request, and so revoked with it")
    ]
    edge: EdgeView


class Traversal(msgspec.Struct, frozen=True):
    """An edge and all edges that are reachable from it through active edges, nearest first."""

    edge_id: str
    items: list[ReachedEdge]
    truncated: Annotated[bool, Meta(description="whether there are more edges than returned")]


class Authority(msgspec.Struct, frozen=True):
    """The scopes and resources that a session currently has from its inbound edges."""

    session_id: str
    zone_id: str
    epoch: Annotated[int, Meta(description="a number that increases with every change to the zone's delegations")]
    scopes: list[str]
    resources: (
        Annotated[list[str], Meta(description="null: all, because at least one delegation names no resources")] | None
    )
    edges: Annotated[
        list[EdgeView],
        Meta(description="the scopes of a delegation apply only to the resources of the same delegation"),
    ]
    why_none: Annotated[str, Meta(description="why the session has no authority; null if it has some")] | None


class EdgeExplanation(msgspec.Struct, frozen=True):
    """Why an edge is in its state, and what cannot be derived from it."""

    edge: EdgeView
    why: Annotated[list[str], Meta(description="sentences, the most important first")]
    chain: Annotated[
        list[EdgeView], Meta(description=f"its parent, the parent's parent, and so on, at most {CHAIN_MAX}")
    ]
    truncated: Annotated[bool, Meta(description="whether the chain has more edges than returned")]
    refuses: Annotated[list[str], Meta(description="what cannot be derived from it, and why")]
    ended_by: (
        Annotated[dict[str, object], Meta(description="the event that ended it: actor, reason, time, trace")] | None
    )


class ListEdgesQuery(PageQuery, frozen=True):
    source: PathId | None = None
    target: PathId | None = None
    status: EdgeState | None = None


class EdgesOfSessionQuery(PageQuery, frozen=True):
    status: EdgeState | None = None


class RevokeQuery(msgspec.Struct, frozen=True):
    keep_sessions: bool = False


class TraverseQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=TRAVERSE_MAX)] = 100
