"""What a session holds, and by which edges."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.domain.delegations.model import Authority, Edge
from quarterdeck.domain.delegations.rules.states import Ref, holds, view, words
from quarterdeck.domain.sessions.model import Session, State


def authority(session: Session, edges: Sequence[Edge], hollow: Collection[Ref], epoch: int, now: Millis) -> Authority:
    """Of a session as it reads now, with the edges that lead to it."""
    held = [edge for edge in edges if holds(edge, now) and (edge.zone_id, edge.id) not in hollow]
    why_none = _why_none(session, held)
    if why_none is not None:
        held = []
    scopes = {scope for edge in held for scope in words(edge.scopes)}
    resources = {name for edge in held for name in words(edge.resources or "[]")}
    return Authority(
        session_id=session.id,
        zone_id=session.zone_id,
        epoch=epoch,
        scopes=sorted(scopes),
        resources=None if any(edge.resources is None for edge in held) else sorted(resources),
        edges=[view(edge) for edge in sorted(held, key=lambda edge: edge.id)],
        why_none=why_none,
    )


def _why_none(session: Session, held: Sequence[Edge]) -> str | None:
    if session.status is State.TERMINATED:
        return "The session has ended, and its authority with it."
    if session.status is State.SUSPENDED:
        return "The session is suspended: it holds nothing until it is resumed."
    return None if held else "No active delegation leads to it."
