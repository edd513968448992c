"""What is asked for, what is stored, and what is shown of delegations: three different types."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.routing import PathId
from quarterdeck.domain.api_keys.model import Scope

SCOPES_MAX = 64
RESOURCES_MAX = 64
HOPS_MAX = 10
"""How often an edge may be passed on at most, if somebody says."""
UNLIMITED_HOPS = 1_000_000
"""Hops of a first edge of which nobody has said how often it may be passed on."""
TTL_MAX = 86_400
TRAVERSE_MAX = 1_000
CHAIN_MAX = 64
"""Edges of a line that are shown: the nearest."""
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Hops = Annotated[int, Meta(ge=1, le=HOPS_MAX)]
Seconds = Annotated[int, Meta(ge=1, le=TTL_MAX)]
Instant = Annotated[datetime, Meta(tz=True)]


class EdgeState(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"


class EdgeVerb(StrEnum):
    REVOKE = "revoke"
    EXPIRE = "expire"


class DelegationSettings(msgspec.Struct, frozen=True):
    """What this room can be told."""

    delegation_sweep_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often delegations past their time are marked expired")
    ] = 5_000
    delegation_sweep_batch: Annotated[
        int, Meta(ge=1, le=10_000, description="delegations expired or removed in one pass")
    ] = 500
    delegation_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long revoked and expired delegations are kept")
    ] = 90.0


# -- asked for ---------------------------------------------------------------------------------------------------


class Constraints(msgspec.Struct, frozen=True):
    """What is understood of an edge's constraints. Other names are kept as they are given, and not interpreted."""

    resources: Annotated[list[Name], Meta(max_length=RESOURCES_MAX)] | None = None
    actions: Annotated[list[Name], Meta(max_length=RESOURCES_MAX)] | None = None
    max_depth: Hops | None = None
    max_hops: Hops | None = None
    budget: object = None
    ttl_seconds: Seconds | None = None
    expires_at: Instant | None = None


class DelegateBody(msgspec.Struct, frozen=True):
    source_session_id: Annotated[PathId, Meta(description="the session that lends")]
    target_session_id: Annotated[
        PathId, Meta(description="the session that receives", examples=["0198f3a2-7c42-7d60-8a13-5b7c9e1f2a46"])
    ]
    issuer_application_id: Annotated[PathId, Meta(description="must be the source's application, if given")] | None = (
        None
    )
    receiver_application_id: (
        Annotated[PathId, Meta(description="must be the target's application, if given")] | None
    ) = None
    scopes: Annotated[list[Scope], Meta(max_length=SCOPES_MAX, description="what is lent")] = []
    resource_id: Annotated[Name, Meta(description="one more resource that it is lent for")] | None = None
    constraints: (
        Annotated[
            dict[str, object],
            Meta(
                description="resources (at most 64; none named: all), actions, max_hops or max_depth 1 to 10, budget, "
                "ttl_seconds, expires_at; other names are kept"
            ),
        ]
        | None
    ) = None
    constraints_json: Annotated[dict[str, object], Meta(description="the same as `constraints`")] | None = None
    expires_at: (
        Annotated[Instant, Meta(description="until when; default: while its parent and both sessions last")] | None
    ) = None
    ttl_seconds: Annotated[Seconds, Meta(description="for how long")] | None = None
    parent_edge_id: (
        Annotated[
            PathId,
            Meta(description="what it is derived from; default: the covering edge into the source that expires last"),
        ]
        | None
    ) = None
    idempotency_key: (
        Annotated[str, Meta(description="as the Idempotency-Key header; if both are given they must agree")] | None
    ) = None


class Delegate(msgspec.Struct, frozen=True):
    """An edge on its way through the lane. The id is made before, so that a batch tried again asks for the same."""

    id: str
    zone_id: str
    caller: Caller
    source_session_id: str
    target_session_id: str
    scopes: tuple[str, ...] = ()
    """Each once, in order."""
    resources: tuple[str, ...] | None = None
    """None: all of them."""
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
    """Asked for: the end of an edge and of all that are derived from it."""

    zone_id: str
    edge_id: str
    caller: Caller
    keep_sessions: bool = False
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class Expire(msgspec.Struct, frozen=True):
    """Asked for by a sweep: an edge past its time is marked so."""

    zone_id: str
    edge_id: str


class EdgeRef(msgspec.Struct, frozen=True):
    zone_id: str
    edge_id: str
    bearer: Bearer | None = None


class EdgeFilter(msgspec.Struct, frozen=True):
    """Which edges of a zone are wanted, newest first."""

    zone_id: str
    limit: int
    before: str | None = None
    source: str | None = None
    target: str | None = None
    status: EdgeState | None = None
    bearer: Bearer | None = None


# -- stored ------------------------------------------------------------------------------------------------------


class Edge(msgspec.Struct, frozen=True, array_like=True):
    """A row of `delegation_edges`, in the order of the `columns` lines of `queries.sql`."""

    id: str
    zone_id: str
    source_session_id: str
    target_session_id: str
    issuer_application_id: str
    receiver_application_id: str
    scopes: str
    """A JSON array, sorted."""
    resource_id: str | None
    resources: str | None
    """A JSON array, sorted; None: all of them."""
    hops: int
    """How often it may still be passed on."""
    constraints_json: str
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
    """What the fall of a part of the graph must know of each active edge in it."""

    zone_id: str
    id: str
    source_session_id: str
    target_session_id: str
    parent_edge_id: str | None
    scopes: str
    expires_at: Millis


class ChainEdge(msgspec.Struct, frozen=True, array_like=True):
    """An edge of somebody's line, and whether the session that lent it has ended."""

    zone_id: str
    id: str
    parent_edge_id: str | None
    source_ended: int


class ZoneEpoch(msgspec.Struct, frozen=True, array_like=True):
    """What a zone's delegations are at, in the order of `delegation_zone_epochs`."""

    zone_id: str
    epoch: int = 0
    ranked: int = 0
    """The epoch that its order is of. Another one: somebody who knew of no order has changed its edges since."""
    has_open_cascade: int = 0
    """Whether an ending is under way in it: only then can a session be stamped, and its edges still be active."""
    lowest_rank: int | None = None
    highest_rank: int | None = None

    @property
    def rank_bounds(self) -> tuple[int, int]:
        return self.lowest_rank or 0, self.highest_rank or 0


class DelegatedEdge(msgspec.Struct, frozen=True):
    """The outcome of a delegation: the edge, and whether this request made it."""

    edge: Edge
    created: bool


class RevokeResult(msgspec.Struct, frozen=True):
    """The outcome of a revocation. A cascade is still to be settled; all in it reads as terminated already."""

    revoked_edges: int = 0
    affected_sessions: int = 0
    terminated_agents: int = 0
    cascade_id: str | None = None


# -- shown -------------------------------------------------------------------------------------------------------


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
    resources: Annotated[list[str], Meta(description="what it is lent for; null: everything")] | None
    max_hops: Annotated[int, Meta(description="how often it may still be passed on; null: nobody has said")] | None
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


class EdgeList(msgspec.Struct, frozen=True):
    items: list[EdgeView]
    next_cursor: str | None


class RevokedView(msgspec.Struct, frozen=True):
    revoked_edges: Annotated[int, Meta(description="edges that were revoked, the derived ones with it")]
    affected_sessions: Annotated[int, Meta(description="sessions that an edge of these led to")]
    terminated_agents: Annotated[int, Meta(description="sessions that ended, those under them included")]


class ReachedEdge(msgspec.Struct, frozen=True):
    level: Annotated[int, Meta(description="hops from the edge that was asked about, which is 0")]
    derived: Annotated[bool, Meta(description="whether revoking the edge that was asked about takes this one")]
    edge: EdgeView


class Traversal(msgspec.Struct, frozen=True):
    """An edge and everything that is reached from it by active edges, nearest first."""

    edge_id: str
    items: list[ReachedEdge]
    truncated: Annotated[bool, Meta(description="whether there is more than is shown")]


class Authority(msgspec.Struct, frozen=True):
    """By which edges a session holds what, at this moment."""

    session_id: str
    zone_id: str
    epoch: Annotated[int, Meta(description="rises with every change of the zone's delegations")]
    scopes: list[str]
    resources: Annotated[list[str], Meta(description="null: everything, by an edge that names none")] | None
    edges: Annotated[list[EdgeView], Meta(description="scopes and resources belong together edge by edge")]
    why_none: Annotated[str, Meta(description="why it holds nothing, if it holds nothing")] | None


class EdgeExplanation(msgspec.Struct, frozen=True):
    """Why an edge is in the state it is in, and what it would refuse."""

    edge: EdgeView
    why: Annotated[list[str], Meta(description="sentences, the most telling first")]
    chain: Annotated[
        list[EdgeView], Meta(description="its parent, the parent of that …: the nearest 64, up to the first one")
    ]
    truncated: Annotated[bool, Meta(description="whether the line goes on beyond what is shown of it")]
    refuses: Annotated[list[str], Meta(description="what could not be derived from it, and why")]
    ended_by: Annotated[dict[str, object], Meta(description="who ended it, and with what")] | None


class ListEdgesQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
    source: PathId | None = None
    target: PathId | None = None
    status: EdgeState | None = None


class EdgesOfSessionQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
    status: EdgeState | None = None


class RevokeQuery(msgspec.Struct, frozen=True):
    keep_sessions: bool = False


class TraverseQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=TRAVERSE_MAX)] = 100
