"""The authority that a session has from its inbound edges."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import Ref
from quarterdeck.domain.delegations.model import Authority, Edge
from quarterdeck.domain.delegations.rules.states import decode_names, is_active, view
from quarterdeck.domain.sessions.model import Session, State


def session_authority(
    session: Session, edges: Sequence[Edge], orphaned: Collection[Ref], epoch: int, now: Millis
) -> Authority:
    """Return the authority of a session. `session` must have its current status; `edges` are its inbound edges."""
    active_edges = [edge for edge in edges if is_active(edge, now) and (edge.zone_id, edge.id) not in orphaned]
    why_none = _no_authority_reason(session, active_edges)
    if why_none is not None:
        active_edges = []
    scopes = {scope for edge in active_edges for scope in decode_names(edge.scopes)}
    resources = {name for edge in active_edges for name in decode_names(edge.resources or "[]")}
    return Authority(
        session_id=session.id,
        zone_id=session.zone_id,
        epoch=epoch,
        scopes=sorted(scopes),
        resources=None if any(edge.resources is None for edge in active_edges) else sorted(resources),
        edges=[view(edge) for edge in sorted(active_edges, key=lambda edge: edge.id)],
        why_none=why_none,
    )


def _no_authority_reason(session: Session, active_edges: Sequence[Edge]) -> str | None:
    if session.status is State.TERMINATED:
        return "The session has ended."
    if session.status is State.SUSPENDED:
        return "The session is suspended and has no authority until it is resumed."
    return None if active_edges else "The session has no active inbound delegation."
