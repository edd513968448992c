"""The life of an edge: its states, how it reads at a moment, and how it is shown."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import msgspec

from quarterdeck.core.clock import Millis, iso, iso_or_none
from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.domain.delegations.model import HOPS_MAX, Edge, EdgeState, EdgeVerb, EdgeView

Ref = tuple[str, str]
"""(zone, edge) or (zone, session)"""

DELEGATION_STATES: StateMachine[EdgeState, EdgeVerb] = StateMachine(
    "delegation",
    EdgeState,
    EdgeState.ACTIVE,
    {EdgeVerb.REVOKE: {EdgeState.ACTIVE: EdgeState.REVOKED}, EdgeVerb.EXPIRE: {EdgeState.ACTIVE: EdgeState.EXPIRED}},
)
REQUESTED = "requested"
"""Somebody has revoked this edge."""
PARENT_REVOKED = "parent_revoked"
"""An edge it is derived from was revoked."""
SESSION_ENDED = "session_ended"
"""A session it leads from or to has ended, or one of an edge it is derived from."""
EXPIRED_REASON = "expired"
DELEGATION_REVOKED = "delegation_revoked"
"""The reason of a session that ended because no edge was left to it."""


class ExpiringEdge(Protocol):
    @property
    def status(self) -> EdgeState: ...
    @property
    def expires_at(self) -> Millis: ...


def is_active(edge: ExpiringEdge, now: Millis) -> bool:
    """Active, and not past its time: whether a sweep has come or not."""
    return edge.status is EdgeState.ACTIVE and edge.expires_at > now


def with_current_status(edge: Edge, now: Millis) -> Edge:
    """An edge as it reads at this moment."""
    if edge.status is not EdgeState.ACTIVE or edge.expires_at > now:
        return edge
    return msgspec.structs.replace(
        edge, status=EdgeState.EXPIRED, ended_at=edge.expires_at, ended_reason=EXPIRED_REASON
    )


@lru_cache(maxsize=4096)
def decode_names(encoded: str) -> frozenset[str]:
    """A stored list of scopes or resources. Remembered: the same ones are lent over and over."""
    return frozenset(msgspec.json.decode(encoded, type=list[str]))


def encode_names(names: frozenset[str]) -> str:
    return msgspec.json.encode(sorted(names)).decode()


# -- refusals ----------------------------------------------------------------------------------------------------


def not_found(edge_id: str) -> NotFound:
    return NotFound("delegation_not_found", f"There is no delegation {edge_id!r} in this zone.")


def endpoint_not_found(session_id: str) -> NotFound:
    return NotFound(
        "delegation_endpoint_not_found", f"There is no live session {session_id!r} in this zone to delegate with."
    )


def suspended(session_id: str) -> Conflict:
    return Conflict(
        "agent_suspended",
        f"The session {session_id!r} is suspended; nothing can be delegated from it or to it.",
        frees="it is resumed",
    )


def self_delegation() -> Invalid:
    return Invalid("self_delegation_denied", "A session lends nothing to itself.", field="target_session_id")


def already_expired() -> Invalid:
    return Invalid("delegation_expired", "The time it is to last until has passed.", field="expires_at")


def cycle_denied(source: str, target: str) -> Conflict:
    return Conflict(
        "delegation_cycle_denied",
        f"Active delegations already lead from {target!r} to {source!r}: this one would close a cycle.",
        frees="a delegation on that way is revoked or expires",
    )


def exceeds_authority(detail: str, excess: list[str], parent_edge_id: str | None = None) -> Forbidden:
    return Forbidden(
        "delegation_exceeds_authority",
        detail,
        exceeds=excess,
        parent_edge_id=parent_edge_id,
        frees="ask for less, or have more lent to the source",
    )


# -- how it is shown ---------------------------------------------------------------------------------------------


def view(edge: Edge) -> EdgeView:
    """An edge as it is shown. What is JSON already is passed through as it is."""
    return EdgeView(
        id=edge.id,
        delegation_edge_id=edge.id,
        zone_id=edge.zone_id,
        source_session_id=edge.source_session_id,
        source_agent_id=edge.source_session_id,
        target_session_id=edge.target_session_id,
        target_agent_id=edge.target_session_id,
        issuer_application_id=edge.issuer_application_id,
        receiver_application_id=edge.receiver_application_id,
        scopes=sorted(decode_names(edge.scopes)),
        resource_id=edge.resource_id,
        resources=None if edge.resources is None else sorted(decode_names(edge.resources)),
        max_hops=edge.hops if edge.hops <= HOPS_MAX else None,
        constraints_json=msgspec.Raw(edge.constraints_json.encode()),
        parent_edge_id=edge.parent_edge_id,
        status=edge.status,
        expires_at=iso(edge.expires_at),
        edge_version=edge.edge_version,
        created_by=edge.created_by,
        ended_at=iso_or_none(edge.ended_at),
        ended_reason=edge.ended_reason,
        created_at=iso(edge.created_at),
        updated_at=iso(edge.updated_at),
    )
