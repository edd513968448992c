"""Authority only narrows, and never runs in a circle.

Every delegation that names a parent was lent out of one that led to its own source, was active and not past its time at
that position, and had every scope that was lent. And at no position do active delegations lead from a session back to
itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from quarterdeck.core.clock import Millis
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence, Finding, Ref, Told
from quarterdeck.maintenance.history_checker.replay import reading

NAME = "narrowing"
FOR_EVER = 2**63


@dataclass(frozen=True, slots=True)
class Edge:
    id: str
    source: str
    target: str
    scopes: frozenset[str]
    expires_at: Millis


@dataclass(slots=True)
class Graph:
    """The delegations that are active, as far as the log has come."""

    edges: dict[Ref, Edge] = field(default_factory=dict)
    ahead: dict[Ref, dict[str, Edge]] = field(default_factory=dict)
    """By the session they lead from."""

    def add(self, zone_id: str, edge: Edge) -> None:
        self.edges[zone_id, edge.id] = edge
        self.ahead.setdefault((zone_id, edge.source), {})[edge.id] = edge

    def remove(self, zone_id: str, edge_id: str) -> None:
        edge = self.edges.pop((zone_id, edge_id), None)
        if edge is not None:
            del self.ahead[zone_id, edge.source][edge_id]

    def leads(self, zone_id: str, start: str, goal: str, at: Millis) -> bool:
        """Whether one session is reached from another by what is not past its time."""
        pending, met = [start], {start}
        while pending:
            session = pending.pop()
            if session == goal:
                return True
            for edge in self.ahead.get((zone_id, session), {}).values():
                if edge.expires_at > at and edge.target not in met:
                    met.add(edge.target)
                    pending.append(edge.target)
        return False


def judge(evidence: Evidence) -> Iterator[Finding]:
    expiries = {(row.zone_id, row.id): row.expires_at for row in evidence.rows.edges}
    graph = Graph()
    for event, told in reading(evidence):
        if event.type == "delegation.create":
            # A row that retention has removed had a time that is not known any more; nobody is blamed for it.
            edge = _edge(event, told, expiries.get((event.zone_id, event.subject), FOR_EVER))
            yield from _wider(evidence, event, told, edge, graph)
            if graph.leads(event.zone_id, edge.target, edge.source, event.at):
                detail = f"the delegation {edge.id} closes a circle from {edge.source} to {edge.target} and back"
                yield Finding(NAME, event.zone_id, edge.id, detail, event.pos)
            graph.add(event.zone_id, edge)
        elif event.type in ("delegation.revoke", "delegation.expire"):
            graph.remove(event.zone_id, event.subject)


def _edge(event: Event, told: Told, expires_at: Millis) -> Edge:
    return Edge(
        event.subject, told.source_session_id or "", told.target_session_id or "", frozenset(told.scopes), expires_at
    )


def _wider(evidence: Evidence, event: Event, told: Told, edge: Edge, graph: Graph) -> Iterator[Finding]:
    if told.parent_edge_id is None:
        return
    parent = graph.edges.get((event.zone_id, told.parent_edge_id))
    if parent is None:
        if evidence.whole:
            yield _found(event, f"out of {told.parent_edge_id}, which was not active")
        return
    if parent.expires_at <= event.at:
        yield _found(event, f"out of {parent.id}, which was past its time")
    if parent.target != edge.source:
        yield _found(event, f"by {edge.source} out of {parent.id}, which leads to {parent.target}")
    if more := sorted(edge.scopes - parent.scopes):
        yield _found(event, f"with {', '.join(more)}, which {parent.id} does not have")
    if edge.expires_at != FOR_EVER and edge.expires_at > parent.expires_at:
        yield _found(event, f"for longer than {parent.id}, which it was lent out of")


def _found(event: Event, how: str) -> Finding:
    return Finding(NAME, event.zone_id, event.subject, f"the delegation {event.subject} was lent {how}", event.pos)
