"""Whether an edge or a token covers a requested edge. This module defines what "authority only narrows" means.

The terms of an edge have six parts. Each part is compared separately, and can only become narrower along a chain:

| part      | covered by the parent if                                   | if omitted                             |
|-----------|------------------------------------------------------------|----------------------------------------|
| scopes    | each is one of the parent's                                | none                                   |
| resources | each is one of the parent's                                | all; the parent must also lend all     |
| actions   | each is one of the parent's                                | the parent's                           |
| budget    | a number not above the parent's; any other value, if equal | the parent's                           |
| hops      | fewer than the parent's                                    | one fewer than the parent's            |
| expiry    | not after the parent's                                     | the parent's                           |

A caller's token is treated as an edge for all resources and actions, without budget or expiry and with unlimited hops.
An edge never expires after either of its two sessions (`creation`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

import msgspec

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller
from quarterdeck.core.clock import SECOND, Millis, iso
from quarterdeck.domain.delegations.model import UNLIMITED_HOPS, Constraints, Delegate, Edge
from quarterdeck.domain.delegations.rules.states import decode_names

NO_EXPIRY: Millis = 2**62
_decode = msgspec.json.Decoder(Constraints).decode


@dataclass(frozen=True, slots=True)
class GrantTerms:
    """What an edge, a token or a request lends. None means unlimited: all scopes, resources or actions, any budget."""

    scopes: frozenset[str] | None
    resources: frozenset[str] | None
    actions: frozenset[str] | None
    budget: object
    hops: int
    expires_at: Millis


def edge_terms(edge: Edge) -> GrantTerms:
    constraints = _decode(edge.constraints_json)
    return GrantTerms(
        scopes=decode_names(edge.scopes),
        resources=None if edge.resources is None else decode_names(edge.resources),
        actions=None if constraints.actions is None else frozenset(constraints.actions),
        budget=constraints.budget,
        hops=edge.hops,
        expires_at=edge.expires_at,
    )


def token_terms(caller: Caller) -> GrantTerms:
    """What a caller may lend without a parent edge. An administrator may lend any scope."""
    can_delegate_any_scope = COORDINATOR_ADMIN in caller.scopes or caller.is_admin
    return GrantTerms(None if can_delegate_any_scope else caller.scopes, None, None, None, UNLIMITED_HOPS, NO_EXPIRY)


def requested_expiry(command: Delegate, now: Millis) -> Millis | None:
    """The earlier of the times that `expires_at` and `ttl_seconds` of a request give, or None if it has neither."""
    times = [command.expires_at] if command.expires_at is not None else []
    times += [now + command.ttl_seconds * SECOND] if command.ttl_seconds is not None else []
    return min(times, default=None)


def requested_terms(command: Delegate, parent: GrantTerms, now: Millis) -> GrantTerms:
    """The terms of a request, with omitted parts taken from the parent."""
    expires_at = requested_expiry(command, now)
    remaining_hops = parent.hops - 1
    return GrantTerms(
        scopes=frozenset(command.scopes),
        resources=None if command.resources is None else frozenset(command.resources),
        actions=parent.actions if command.actions is None else frozenset(command.actions),
        budget=parent.budget if command.budget is None else command.budget,
        hops=remaining_hops if command.hops is None else command.hops,
        expires_at=parent.expires_at if expires_at is None else expires_at,
    )


def find_excess(requested: GrantTerms, parent: GrantTerms) -> list[str]:
    """Return one sentence per part in which `requested` exceeds the parent. Empty if the parent covers it."""
    return [*_set_excess(requested, parent), *_limit_excess(requested, parent)]


def _set_excess(requested: GrantTerms, parent: GrantTerms) -> Iterator[str]:
    parts = (
        ("scopes", requested.scopes, parent.scopes),
        ("resources", requested.resources, parent.resources),
        ("actions", requested.actions, parent.actions),
    )
    for name, names, allowed in parts:
        if allowed is None:
            continue
        if names is None:
            yield f"It requests all {name}; allowed: {_format_names(allowed)}."
        elif excess := names - allowed:
            yield f"These {name} are not covered: {_format_names(excess)}."


def _limit_excess(requested: GrantTerms, parent: GrantTerms) -> Iterator[str]:
    if parent.budget is not None and not _within_budget(requested.budget, parent.budget):
        yield f"Budget {_format_value(requested.budget)} is not within {_format_value(parent.budget)}."
    if parent.hops < 1:
        yield "The parent has no hops left, so nothing can be derived from it."
    elif requested.hops > parent.hops - 1:
        yield f"It requests {requested.hops} hops; at most {parent.hops - 1} are left."
    if requested.expires_at > parent.expires_at:
        yield f"It would expire after its parent, which expires at {iso(parent.expires_at)}."


def _within_budget(requested: object, allowed: object) -> bool:
    if _is_number(allowed):
        return _is_number(requested) and requested <= allowed
    # The server cannot order other values, so they must be equal. They are compared as text, because True == 1.
    return _json_text(requested) == _json_text(allowed)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format_names(names: frozenset[str]) -> str:
    """List at most five names, to keep error messages short."""
    first = sorted(names)[:5]
    remaining = len(names) - len(first)
    return ", ".join(first) + (f" and {remaining} more" if remaining else "") if first else "none"


def _json_text(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _format_value(value: object) -> str:
    text = _json_text(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
