"""Why: in words, from the same rows and by the same rules that decide."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.domain.delegations.model import HOPS_MAX, Edge, EdgeState
from quarterdeck.domain.delegations.rules import states
from quarterdeck.domain.delegations.rules.attenuation import terms_of
from quarterdeck.domain.delegations.rules.states import as_read


def state_explained(edge: Edge, chain: Sequence[Edge], *, hollow: bool, truncated: bool, now: Millis) -> list[str]:
    """Why an edge is in its state: the most telling sentence first. `chain` is its parent, the parent of that …, and
    may have been cut."""
    read = as_read(edge, now)
    said = [_ended(edge, now)] if read.status is not EdgeState.ACTIVE else _standing(edge, hollow)
    if not chain and edge.parent_edge_id is None:
        return [*said, "It was lent out of a caller's token: no edge led to its source."]
    if truncated:
        return [*said, f"It stands more than {len(chain)} below the first edge of its line."]
    first = chain[-1] if chain else edge
    said.append(f"It stands {len(chain)} below the first edge of its line, {first.id}.")
    if first.parent_edge_id is not None:
        said.append(f"What that was derived from, {first.parent_edge_id}, is no longer kept.")
    return said


def _standing(edge: Edge, hollow: bool) -> list[str]:
    if hollow:
        return ["It is active, but a session it was lent by has ended: it lends nothing, and is revoked shortly."]
    return [f"It is active until {iso(edge.expires_at)}, or until it is revoked or one of its sessions ends."]


def _ended(edge: Edge, now: Millis) -> str:
    if edge.status is EdgeState.ACTIVE:
        return f"Its time ran out at {iso(edge.expires_at)}; the next sweep writes that down."
    at = iso(edge.ended_at if edge.ended_at is not None else now)
    return {
        states.REQUESTED: f"It was revoked at {at}.",
        states.WITH_PARENT: f"It was revoked at {at}, with an edge it is derived from.",
        states.WITH_SESSION: f"It was revoked at {at}, because a session that it leads from or to has ended, or one of "
        "an edge it is derived from.",
        states.TIME_IS_UP: f"Its time ran out at {iso(edge.expires_at)}.",
    }.get(edge.ended_reason or "", f"It was {edge.status} at {at}.")


def refusals_explained(edge: Edge, hollow: bool, now: Millis) -> list[str]:
    """What could not be derived from an edge now."""
    if not states.holds(edge, now):
        return [f"Everything: it is {as_read(edge, now).status}."]
    if hollow:
        return ["Everything: a session it was lent by has ended."]
    terms = terms_of(edge)
    if terms.hops < 1:
        return ["Everything: it may not be passed on, no hops are left."]
    said = [f"Scopes other than {_listed(terms.scopes)}."]
    if terms.resources is not None:
        said.append(f"Resources other than {_listed(terms.resources)}, or all resources.")
    if terms.actions is not None:
        said.append(f"Actions other than {_listed(terms.actions)}.")
    if terms.budget is not None:
        said.append(f"A budget beyond {msgspec.json.encode(terms.budget).decode()}.")
    if terms.hops <= HOPS_MAX:
        said.append(f"More than {terms.hops - 1} further hops.")
    said.append(f"A time after {iso(terms.expires_at)}.")
    said.append("A target from which active edges lead back to its source.")
    return said


def _listed(names: frozenset[str] | None) -> str:
    return ", ".join(sorted(names)) if names else "none"
