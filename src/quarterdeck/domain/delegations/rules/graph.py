"""The graph of active edges: falls and distances. Every walk has one visited set, and meets each edge once.

A session's edges are known whole or not at all: whoever loads a part of the graph loads, of every session in it, all
active edges that lead to it. That is what lets `Falling` say that nothing is left to a session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from quarterdeck.core.clock import Millis
from quarterdeck.domain.delegations.model import Above, Link
from quarterdeck.domain.delegations.rules.states import REQUESTED, WITH_PARENT, WITH_SESSION, Ref


@dataclass(slots=True)
class Fell:
    """What one revocation takes."""

    edges: list[tuple[Link, str]] = field(default_factory=list)
    """With the reason of each."""
    emptied: list[Ref] = field(default_factory=list)
    """Sessions that no edge is left to: these end."""

    @property
    def affected(self) -> set[Ref]:
        return {(link.zone_id, link.target_session_id) for link, _ in self.edges}


class Falling:
    """A part of the graph while edges of it are revoked. What has fallen for one ask is gone for the next."""

    def __init__(self, now: Millis) -> None:
        self._now = now
        self._standing: dict[Ref, Link] = {}
        self._gone: set[Ref] = set()
        self._into: dict[Ref, set[Ref]] = {}
        self._held_by: dict[Ref, set[Ref]] = {}
        self._out_of: dict[Ref, set[Ref]] = {}
        self._derived: dict[Ref, list[Ref]] = {}
        self._ended: set[Ref] = set()

    def know(self, links: Iterable[Link], hollow: Collection[Ref] = ()) -> None:
        """More of the graph. What is past its time is no part of it: expiry ends nobody. What is hollow falls with the
        others, and holds nobody until then."""
        for link in links:
            ref = (link.zone_id, link.id)
            if link.expires_at <= self._now or ref in self._gone or ref in self._standing:
                continue
            self._standing[ref] = link
            target = (link.zone_id, link.target_session_id)
            self._into.setdefault(target, set()).add(ref)
            if ref not in hollow:
                self._held_by.setdefault(target, set()).add(ref)
            self._out_of.setdefault((link.zone_id, link.source_session_id), set()).add(ref)
            if link.parent_edge_id is not None:
                self._derived.setdefault((link.zone_id, link.parent_edge_id), []).append(ref)

    def revoke(self, edge: Ref, *, ends: bool) -> Fell:
        """The edge falls, with all that are derived from it. If it `ends`, so does every session that no edge is left
        to, and with it the edges from it and to it."""
        fell = Fell()
        self._fall([(edge, REQUESTED)], fell, ends=ends)
        return fell

    def end(self, sessions: Iterable[Ref], fell: Fell) -> None:
        """These end: because nothing is left to them, or because they stand under one that ends. What follows from the
        edges that are known by now is added to what fell."""
        pending: list[tuple[Ref, str]] = []
        for session in sessions:
            self._ended.add(session)
            pending += self._around(session)
        self._fall(pending, fell, ends=True)

    def _fall(self, pending: list[tuple[Ref, str]], fell: Fell, *, ends: bool) -> None:
        while pending:
            ref, reason = pending.pop()
            link = self._standing.pop(ref, None)
            if link is None:
                continue
            self._gone.add(ref)
            fell.edges.append((link, reason))
            target = (link.zone_id, link.target_session_id)
            self._into[target].discard(ref)
            self._out_of[link.zone_id, link.source_session_id].discard(ref)
            held_by = self._held_by.setdefault(target, set())
            held_by.discard(ref)
            if ends and not held_by and target not in self._ended:
                self._ended.add(target)
                fell.emptied.append(target)
                pending += self._around(target)
            # Last in is first out: what is derived falls for that reason, even if its source ends, too.
            derived = WITH_SESSION if reason == WITH_SESSION else WITH_PARENT
            pending += [(each, derived) for each in self._derived.get(ref, ())]

    def _around(self, session: Ref) -> list[tuple[Ref, str]]:
        edges = self._into.get(session, set()) | self._out_of.get(session, set())
        return [(ref, WITH_SESSION) for ref in sorted(edges, reverse=True)]


def hollow(lines: Iterable[Above]) -> set[Ref]:
    """Which of these edges a session has lent that has ended, or one further up their line. Lines are given whole."""
    above = {(each.zone_id, each.id): each for each in lines}
    found: dict[Ref, bool] = {}
    for ref in above:
        line: list[Ref] = []
        at: Ref | None = ref
        while at in above and at not in found:
            line.append(at)
            parent = above[at].parent_edge_id
            at = None if parent is None else (at[0], parent)
        is_hollow = at is not None and found.get(at, False)
        for each in reversed(line):
            is_hollow = found[each] = is_hollow or above[each].ended == 1
    return {ref for ref, is_hollow in found.items() if is_hollow}


def levels(first: Link, links: Sequence[Link]) -> list[tuple[int, bool, Link]]:
    """Edges ahead of a first one, nearest first: how far ahead each is, and whether it is derived from the first."""
    out_of: dict[str, list[Link]] = {}
    for link in links:
        if link.id != first.id:
            out_of.setdefault(link.source_session_id, []).append(link)
    found = [(0, first)]
    met, pending = {first.target_session_id}, deque([(first.target_session_id, 1)])
    while pending:
        session, level = pending.popleft()
        for link in sorted(out_of.get(session, ()), key=lambda each: each.id):
            found.append((level, link))
            if link.target_session_id not in met:
                met.add(link.target_session_id)
                pending.append((link.target_session_id, level + 1))
    derived = _derived(first, [link for _, link in found])
    return [(level, link.id in derived, link) for level, link in found]


def _derived(first: Link, links: Sequence[Link]) -> set[str]:
    """A walk of its own: of two ways to a session, the longer may be the one that it lends by."""
    children: dict[str | None, list[str]] = {}
    for link in links:
        children.setdefault(link.parent_edge_id, []).append(link.id)
    met, pending = {first.id}, [first.id]
    while pending:
        fresh = [each for each in children.get(pending.pop(), ()) if each not in met]
        met.update(fresh)
        pending += fresh
    return met
