"""The states of an edge, its current status, its view, and the errors of delegations."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.core.views import view_of
from quarterdeck.domain.delegations.model import HOPS_MAX, Edge, EdgeState, EdgeVerb, EdgeView

DELEGATION_STATES: StateMachine[EdgeState, EdgeVerb] = StateMachine(
    "delegation",
    EdgeState,
    EdgeState.ACTIVE,
    {EdgeVerb.REVOKE: {EdgeState.ACTIVE: EdgeState.REVOKED}, EdgeVerb.EXPIRE: {EdgeState.ACTIVE: EdgeState.EXPIRED}},
)
REQUESTED = "requested"
"""A caller revoked this edge."""
PARENT_REVOKED = "parent_revoked"
"""The edge was derived from an edge that was revoked."""
SESSION_ENDED = "session_ended"
"""The source or target session of the edge, or of an edge it was derived from, has ended."""
EXPIRED_REASON = "expired"
DELEGATION_REVOKED = "delegation_revoked"
"""Termination reason of a session that has no active inbound edge left."""


class ExpiringEdge(Protocol):
    @property
    def status(self) -> EdgeState: ...
    @property
    def expires_at(self) -> Millis: ...


def is_active(edge: ExpiringEdge, now: Millis) -> bool:
    """Whether the edge is marked active and not past `expires_at`. A sweep may not have marked it as expired yet."""
    return edge.status is EdgeState.ACTIVE and edge.expires_at > now


def with_current_status(edge: Edge, now: Millis) -> Edge:
    """Return the edge as expired if it is past `expires_at`, even if no sweep has marked it yet."""
    if edge.status is not EdgeState.ACTIVE or edge.expires_at > now:
        return edge
    return msgspec.structs.replace(
        edge, status=EdgeState.EXPIRED, ended_at=edge.expires_at, ended_reason=EXPIRED_REASON
    )


@lru_cache(maxsize=4096)
def decode_names(encoded: str) -> frozenset[str]:
    """Decode a stored list of scopes or resources. Cached, because the same lists recur."""
    return frozenset(msgspec.json.decode(encoded, type=list[str]))


def encode_names(names: frozenset[str]) -> str:
    return msgspec.json.encode(sorted(names)).decode()


# -- errors ------------------------------------------------------------------------------------------------------


def not_found(edge_id: str) -> NotFound:
    return NotFound("delegation_not_found", f"Delegation {edge_id!r} does not exist in this zone.")


def endpoint_not_found(session_id: str) -> NotFound:
    return NotFound(
        "delegation_endpoint_not_found", f"Session {session_id!r} does not exist in this zone or has ended."
    )


def endpoint_suspended(session_id: str) -> Conflict:
    return Conflict(
        "agent_suspended",
        f"Session {session_id!r} is suspended and cannot delegate or receive delegations. Resume it first.",
        frees="it is resumed",
    )


def self_delegation() -> Invalid:
    return Invalid("self_delegation_denied", "Source and target must be different sessions.", field="target_session_id")


def already_expired() -> Invalid:
    return Invalid(
        "delegation_expired", "The requested expiry is in the past. Give a later `expires_at`.", field="expires_at"
    )


def cycle_denied(source: str, target: str) -> Conflict:
    return Conflict(
        "delegation_cycle_denied",
        f"Active delegations already lead from {target!r} to {source!r}, so this one would close a cycle.",
        frees="a delegation on that path is revoked or expires",
    )


def exceeds_authority(detail: str, excess: list[str], parent_edge_id: str | None = None) -> Forbidden:
    return Forbidden(
        "delegation_exceeds_authority",
        detail,
        exceeds=excess,
        parent_edge_id=parent_edge_id,
        frees="request less, or delegate more to the source",
    )


# -- response ----------------------------------------------------------------------------------------------------

view = view_of(
    Edge,
    EdgeView,
    delegation_edge_id="id",
    source_agent_id="source_session_id",
    target_agent_id="target_session_id",
    scopes=lambda edge: sorted(decode_names(edge.scopes)),
    resources=lambda edge: None if edge.resources is None else sorted(decode_names(edge.resources)),
    max_hops=lambda edge: edge.hops if edge.hops <= HOPS_MAX else None,
)
