"""Sentences that explain the state of an edge, and what cannot be derived from it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.domain.delegations.model import HOPS_MAX, Edge, EdgeState
from quarterdeck.domain.delegations.rules import states
from quarterdeck.domain.delegations.rules.attenuation import edge_terms
from quarterdeck.domain.delegations.rules.states import with_current_status


def explain_state(edge: Edge, chain: Sequence[Edge], *, is_orphaned: bool, truncated: bool, now: Millis) -> list[str]:
    """Return sentences on why an edge is in its state, the most important first.

    `chain` is its parent, the parent's parent, and so on. `truncated` means that the chain has further parents.
    """
    current = with_current_status(edge, now)
    sentences = (
        [_explain_ended(edge, now)] if current.status is not EdgeState.ACTIVE else _explain_active(edge, is_orphaned)
    )
    if not chain and edge.parent_edge_id is None:
        return [*sentences, "It has no parent: it was created from a caller's token."]
    if truncated:
        return [*sentences, f"Its chain has more than {len(chain)} parents."]
    root = chain[-1] if chain else edge
    sentences.append(f"Its chain has {len(chain)} parents and starts at {root.id}.")
    if root.parent_edge_id is not None:
        sentences.append(f"The parent of that edge, {root.parent_edge_id}, is no longer stored.")
    return sentences


def _explain_active(edge: Edge, is_orphaned: bool) -> list[str]:
    if is_orphaned:
        return ["It is active, but a source session in its chain has ended: it lends nothing and will be revoked soon."]
    return [f"It is active until {iso(edge.expires_at)}, unless it is revoked or one of its sessions ends earlier."]


def _explain_ended(edge: Edge, now: Millis) -> str:
    if edge.status is EdgeState.ACTIVE:
        return f"It expired at {iso(edge.expires_at)}. The next sweep records this."
    at = iso(edge.ended_at if edge.ended_at is not None else now)
    return {
        states.REQUESTED: f"It was revoked at {at}.",
        states.PARENT_REVOKED: f"It was revoked at {at}, together with an edge it is derived from.",
        states.SESSION_ENDED: f"It was revoked at {at}, because its source or target session, or that of an edge it is "
        "derived from, ended.",
        states.EXPIRED_REASON: f"It expired at {iso(edge.expires_at)}.",
    }.get(edge.ended_reason or "", f"It was {edge.status} at {at}.")


def explain_limits(edge: Edge, is_orphaned: bool, now: Millis) -> list[str]:
    """Return sentences on what cannot be derived from an edge now."""
    if not states.is_active(edge, now):
        return [f"Everything: it is {with_current_status(edge, now).status}."]
    if is_orphaned:
        return ["Everything: a source session in its chain has ended."]
    terms = edge_terms(edge)
    if terms.hops < 1:
        return ["Everything: no hops are left."]
    sentences = [f"Scopes other than {_format_names(terms.scopes)}."]
    if terms.resources is not None:
        sentences.append(f"Resources other than {_format_names(terms.resources)}, or all resources.")
    if terms.actions is not None:
        sentences.append(f"Actions other than {_format_names(terms.actions)}.")
    if terms.budget is not None:
        sentences.append(f"A budget beyond {msgspec.json.encode(terms.budget).decode()}.")
    if terms.hops <= HOPS_MAX:
        sentences.append(f"More than {terms.hops - 1} further hops.")
    sentences.append(f"An expiry after {iso(terms.expires_at)}.")
    sentences.append("A target that already reaches its source through active edges.")
    return sentences


def _format_names(names: frozenset[str] | None) -> str:
    return ", ".join(sorted(names)) if names else "none"
