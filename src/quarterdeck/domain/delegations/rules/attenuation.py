"""Whether one edge covers another. This is the specification of "authority only narrows".

What an edge lends has six parts. Each is compared by itself, and each can only become smaller along a line of edges:

| part      | within the parent's if                                      | if nothing is said                     |
|-----------|-------------------------------------------------------------|----------------------------------------|
| scopes    | each of them is one of the parent's                         | none                                   |
| resources | each of them is one of the parent's                         | all, which only an edge for all covers |
| actions   | each of them is one of the parent's                         | the parent's                           |
| budget    | a number not above the parent's; anything else, if the same | the parent's                           |
| hops      | fewer than the parent's                                     | as many as that leaves                 |
| expiry    | not after the parent's                                      | the parent's                           |

A caller's token is like an edge for everything that has no end and may be passed on freely. Whatever covers it, an edge
ends with the first of its two sessions (`lending`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

import msgspec

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller
from quarterdeck.core.clock import SECOND, Millis, iso
from quarterdeck.domain.delegations.model import FREELY, Constraints, Delegate, Edge
from quarterdeck.domain.delegations.rules.states import words

FOR_EVER: Millis = 2**62
_decode = msgspec.json.Decoder(Constraints).decode


@dataclass(frozen=True, slots=True)
class Terms:
    """What is lent. None is no bound: every scope, every resource, every action, any budget."""

    scopes: frozenset[str] | None
    resources: frozenset[str] | None
    actions: frozenset[str] | None
    budget: object
    hops: int
    expires_at: Millis


def terms_of(edge: Edge) -> Terms:
    bounds = _decode(edge.constraints_json)
    return Terms(
        scopes=words(edge.scopes),
        resources=None if edge.resources is None else words(edge.resources),
        actions=None if bounds.actions is None else frozenset(bounds.actions),
        budget=bounds.budget,
        hops=edge.hops,
        expires_at=edge.expires_at,
    )


def terms_of_token(caller: Caller) -> Terms:
    """What a caller may lend where no edge says so. The zone's administrator may lend any scope."""
    lends_any = COORDINATOR_ADMIN in caller.scopes or caller.is_admin
    return Terms(None if lends_any else caller.scopes, None, None, None, FREELY, FOR_EVER)


def until(ask: Delegate, now: Millis) -> Millis | None:
    """When an ask wants its edge to end: the earliest of what it says; None if it says nothing."""
    times = [ask.expires_at] if ask.expires_at is not None else []
    times += [now + ask.ttl_seconds * SECOND] if ask.ttl_seconds is not None else []
    return min(times, default=None)


def narrowed(ask: Delegate, parent: Terms, now: Millis) -> Terms:
    """What is asked for, filled up from the parent."""
    asked = until(ask, now)
    left = parent.hops - 1
    return Terms(
        scopes=frozenset(ask.scopes),
        resources=None if ask.resources is None else frozenset(ask.resources),
        actions=parent.actions if ask.actions is None else frozenset(ask.actions),
        budget=parent.budget if ask.budget is None else ask.budget,
        hops=left if ask.hops is None else ask.hops,
        expires_at=parent.expires_at if asked is None else asked,
    )


def excess(wanted: Terms, parent: Terms) -> list[str]:
    """Every part in which `wanted` goes beyond the parent, as a sentence. None: the parent covers it."""
    return [*_excess_of_sets(wanted, parent), *_excess_of_numbers(wanted, parent)]


def _excess_of_sets(wanted: Terms, parent: Terms) -> Iterator[str]:
    parts = (
        ("scopes", wanted.scopes, parent.scopes),
        ("resources", wanted.resources, parent.resources),
        ("actions", wanted.actions, parent.actions),
    )
    for name, own, bound in parts:
        if bound is None:
            continue
        if own is None:
            yield f"It asks for all {name}, and may name only {_listed(bound)}."
        elif beyond := own - bound:
            yield f"Of its {name}, {_listed(beyond)} cannot be lent here."


def _excess_of_numbers(wanted: Terms, parent: Terms) -> Iterator[str]:
    if parent.budget is not None and not _within_budget(wanted.budget, parent.budget):
        yield f"Its budget {_told(wanted.budget)} is not within {_told(parent.budget)}."
    if parent.hops < 1:
        yield "What it would be derived from may not be passed on: no hops are left."
    elif wanted.hops > parent.hops - 1:
        yield f"It asks for {wanted.hops} hops, and at most {parent.hops - 1} are left."
    if wanted.expires_at > parent.expires_at:
        yield f"It would outlast {iso(parent.expires_at)}, when what it is derived from expires."


def _within_budget(own: object, bound: object) -> bool:
    if _is_number(bound):
        return _is_number(own) and own <= bound
    # What means something to others only cannot be compared, so it may not change. As text: to Python, true is 1.
    return _text(own) == _text(bound)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _listed(names: frozenset[str]) -> str:
    """Enough of them to understand it: a problem is no place for a thousand names."""
    shown = sorted(names)[:5]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") if shown else "none"


def _text(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _told(value: object) -> str:
    text = _text(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
