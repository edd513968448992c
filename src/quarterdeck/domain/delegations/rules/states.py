"""The life of an edge: its states, how it reads at a moment, and how it is shown."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import msgspec

from quarterdeck.core.clock import Millis, iso, iso_or_none
from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound
from quarterdeck.core.state_machine import Machine
from quarterdeck.domain.delegations.model import HOPS_MAX, Edge, EdgeState, EdgeVerb, EdgeView

Ref = tuple[str, str]
"""(zone, edge) or (zone, session)"""

DELEGATION: Machine[EdgeState, EdgeVerb] = Machine(
    "delegation",
    EdgeState,
    EdgeState.ACTIVE,
    {EdgeVerb.REVOKE: {EdgeState.ACTIVE: EdgeState.REVOKED}, EdgeVerb.EXPIRE: {EdgeState.ACTIVE: EdgeState.EXPIRED}},
)
REQUESTED = "requested"
"""Somebody has revoked this edge."""
WITH_PARENT = "parent_revoked"
"""An edge it is derived from was revoked."""
WITH_SESSION = "session_ended"
"""A session it leads from or to has ended, or one of an edge it is derived from."""
TIME_IS_UP = "expired"
DELEGATION_REVOKED = "delegation_revoked"
"""The reason of a session that ended because no edge was left to it."""


class Timed(Protocol):
    @property
    def status(self) -> EdgeState: ...
    @property
    def expires_at(self) -> Millis: ...


def holds(edge: Timed, now: Millis) -> bool:
    """Active, and not past its time: whether a sweep has come or not."""
    return edge.status is EdgeState.ACTIVE and edge.expires_at > now


def as_read(edge: Edge, now: Millis) -> Edge:
    """An edge as it reads at this moment."""
    if edge.status is not EdgeState.ACTIVE or edge.expires_at > now:
        return edge
    return msgspec.structs.replace(edge, status=EdgeState.EXPIRED, ended_at=edge.expires_at, ended_reason=TIME_IS_UP)


@lru_cache(maxsize=4096)
def words(stored: str) -> frozenset[str]:
    """A stored list of scopes or resources. Remembered: the same ones are lent over and over."""
    return frozenset(msgspec.json.decode(stored, type=list[str]))


def stored(found: frozenset[str]) -> str:
    return msgspec.json.encode(sorted(found)).decode()


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


def to_itself() -> Invalid:
    return Invalid("self_delegation_denied", "A session lends nothing to itself.", field="target_session_id")


def expired() -> Invalid:
    return Invalid("delegation_expired", "The time it is to last until has passed.", field="expires_at")


def cycle(source: str, target: str) -> Conflict:
    return Conflict(
        "delegation_cycle_denied",
        f"Active delegations already lead from {target!r} to {source!r}: this one would close a cycle.",
        frees="a delegation on that way is revoked or expires",
    )


def exceeds(says: str, exceeding: list[str], parent_edge_id: str | None = None) -> Forbidden:
    return Forbidden(
        "delegation_exceeds_authority",
        says,
        exceeds=exceeding,
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
        scopes=sorted(words(edge.scopes)),
        resource_id=edge.resource_id,
        resources=None if edge.resources is None else sorted(words(edge.resources)),
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
