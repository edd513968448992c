"""Walks of the graph of active edges: what a revocation ends, which edges are orphaned, which edges are reachable.

Every walk visits each edge at most once. For every target in a loaded part of the graph, all its active inbound edges
are loaded. So `RevocationGraph` can decide whether a session has an inbound edge left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import Ref
from quarterdeck.domain.delegations.model import ChainEdge, GraphEdge
from quarterdeck.domain.delegations.rules.states import PARENT_REVOKED, REQUESTED, SESSION_ENDED


@dataclass(slots=True)
class Revocation:
    """The edges and sessions that one command ends."""

    edges: list[tuple[GraphEdge, str]] = field(default_factory=list)
    """(edge, reason)"""
    ended_sessions: list[Ref] = field(default_factory=list)
    """Sessions to terminate, because they have no inbound edge left that keeps them alive."""

    @property
    def affected_sessions(self) -> set[Ref]:
        return {(edge.zone_id, edge.target_session_id) for edge, _ in self.edges}


class RevocationGraph:
    """The loaded part of the graph. Each revocation sees the effects of the previous ones."""

    def __init__(self, now: Millis) -> None:
        self._now = now
        self._active: dict[Ref, GraphEdge] = {}
        self._revoked: set[Ref] = set()
        self._inbound: dict[Ref, set[Ref]] = {}
        self._supporting: dict[Ref, set[Ref]] = {}
        """Session → the inbound edges that keep it alive: those that are not orphaned."""
        self._outbound: dict[Ref, set[Ref]] = {}
        self._derived: dict[Ref, list[Ref]] = {}
        self._ended_sessions: set[Ref] = set()

    def add_edges(self, edges: Iterable[GraphEdge], orphaned: Collection[Ref] = ()) -> None:
        """Add loaded edges.

        Expired edges are skipped: expiry terminates no session. Orphaned edges can be revoked, but do not keep their
        target alive.
        """
        for edge in edges:
            ref = (edge.zone_id, edge.id)
            if edge.expires_at <= self._now or ref in self._revoked or ref in self._active:
                continue
            self._active[ref] = edge
            target = (edge.zone_id, edge.target_session_id)
            self._inbound.setdefault(target, set()).add(ref)
            if ref not in orphaned:
                self._supporting.setdefault(target, set()).add(ref)
            self._outbound.setdefault((edge.zone_id, edge.source_session_id), set()).add(ref)
            if edge.parent_edge_id is not None:
                self._derived.setdefault((edge.zone_id, edge.parent_edge_id), []).append(ref)

    def revoke(self, edge_ref: Ref, *, ends_sessions: bool) -> Revocation:
        """Revoke an edge and all edges derived from it.

        With `ends_sessions`, each target that no other edge keeps alive ends, and so do all its edges.
        """
        revocation = Revocation()
        self._revoke_all([(edge_ref, REQUESTED)], revocation, ends_sessions=ends_sessions)
        return revocation

    def end_sessions(self, sessions: Iterable[Ref], revocation: Revocation) -> None:
        """End sessions that have no inbound edge left or are below a session that ends.

        Their loaded edges, and everything that ends as a result, are added to `revocation`.
        """
        pending: list[tuple[Ref, str]] = []
        for session in sessions:
            self._ended_sessions.add(session)
            pending += self._edges_of(session)
        self._revoke_all(pending, revocation, ends_sessions=True)

    def _revoke_all(self, pending: list[tuple[Ref, str]], revocation: Revocation, *, ends_sessions: bool) -> None:
        while pending:
            ref, reason = pending.pop()
            edge = self._active.pop(ref, None)
            if edge is None:
                continue
            self._revoked.add(ref)
            revocation.edges.append((edge, reason))
            target = (edge.zone_id, edge.target_session_id)
            self._inbound[target].discard(ref)
            self._outbound[edge.zone_id, edge.source_session_id].discard(ref)
            supporting = self._supporting.setdefault(target, set())
            supporting.discard(ref)
            if ends_sessions and not supporting and target not in self._ended_sessions:
                self._ended_sessions.add(target)
                revocation.ended_sessions.append(target)
                pending += self._edges_of(target)
            # Derived edges are pushed last, so they are popped first and get this reason even if their source ends too.
            derived_reason = SESSION_ENDED if reason == SESSION_ENDED else PARENT_REVOKED
            pending += [(derived_ref, derived_reason) for derived_ref in self._derived.get(ref, ())]

    def _edges_of(self, session: Ref) -> list[tuple[Ref, str]]:
        edges = self._inbound.get(session, set()) | self._outbound.get(session, set())
        return [(ref, SESSION_ENDED) for ref in sorted(edges, reverse=True)]


def find_orphaned(chains: Iterable[ChainEdge]) -> set[Ref]:
    """Return the edges whose source session, or a source session further up their chain, has ended.

    `chains` must contain complete chains.
    """
    by_ref = {(edge.zone_id, edge.id): edge for edge in chains}
    orphaned_by_ref: dict[Ref, bool] = {}
    for ref in by_ref:
        chain: list[Ref] = []
        current: Ref | None = ref
        while current in by_ref and current not in orphaned_by_ref:
            chain.append(current)
            parent = by_ref[current].parent_edge_id
            current = None if parent is None else (current[0], parent)
        is_orphaned = current is not None and orphaned_by_ref.get(current, False)
        for edge in reversed(chain):
            is_orphaned = orphaned_by_ref[edge] = is_orphaned or by_ref[edge].source_ended == 1
    return {ref for ref, is_orphaned in orphaned_by_ref.items() if is_orphaned}


def edges_by_level(first: GraphEdge, edges: Sequence[GraphEdge]) -> list[tuple[int, bool, GraphEdge]]:
    """Return `first` and all edges reachable from it, nearest first, as (distance, is derived from `first`, edge)."""
    outbound: dict[str, list[GraphEdge]] = {}
    for edge in edges:
        if edge.id != first.id:
            outbound.setdefault(edge.source_session_id, []).append(edge)
    reachable = [(0, first)]
    visited, pending = {first.target_session_id}, deque([(first.target_session_id, 1)])
    while pending:
        session, level = pending.popleft()
        for edge in sorted(outbound.get(session, ()), key=lambda candidate: candidate.id):
            reachable.append((level, edge))
            if edge.target_session_id not in visited:
                visited.add(edge.target_session_id)
                pending.append((edge.target_session_id, level + 1))
    derived = _derived_from(first, [edge for _, edge in reachable])
    return [(level, edge.id in derived, edge) for level, edge in reachable]


def _derived_from(first: GraphEdge, edges: Sequence[GraphEdge]) -> set[str]:
    """Return the ids of `first` and of all edges derived from it.

    This is a separate walk: if two paths lead to a session, its edges may be derived along the longer one.
    """
    children: dict[str | None, list[str]] = {}
    for edge in edges:
        children.setdefault(edge.parent_edge_id, []).append(edge.id)
    visited, pending = {first.id}, [first.id]
    while pending:
        unvisited = [edge_id for edge_id in children.get(pending.pop(), ()) if edge_id not in visited]
        visited.update(unvisited)
        pending += unvisited
    return visited
