"""A delegation never exceeds its parent, and active delegations form no cycle.

When a delegation is created, its parent must lead to the session that delegates, be active and unexpired, have all
scopes of the new delegation, and not expire before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import Ref
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import EventData, Evidence, Violation
from quarterdeck.maintenance.history_checker.session_replay import readable_events

NAME = "narrowing"
NEVER_EXPIRES = 2**63


@dataclass(frozen=True, slots=True)
class Edge:
    id: str
    source: str
    target: str
    scopes: frozenset[str]
    expires_at: Millis


@dataclass(slots=True)
class Graph:
    """The active delegations at the current position of the replay."""

    edges: dict[Ref, Edge] = field(default_factory=dict)
    outgoing: dict[Ref, dict[str, Edge]] = field(default_factory=dict)
    """By source session."""

    def add(self, zone_id: str, edge: Edge) -> None:
        self.edges[zone_id, edge.id] = edge
        self.outgoing.setdefault((zone_id, edge.source), {})[edge.id] = edge

    def remove(self, zone_id: str, edge_id: str) -> None:
        edge = self.edges.pop((zone_id, edge_id), None)
        if edge is not None:
            del self.outgoing[zone_id, edge.source][edge_id]

    def has_path(self, zone_id: str, start: str, goal: str, now: Millis) -> bool:
        """Whether delegations that have not expired lead from `start` to `goal`."""
        stack, seen = [start], {start}
        while stack:
            session_id = stack.pop()
            if session_id == goal:
                return True
            for edge in self.outgoing.get((zone_id, session_id), {}).values():
                if edge.expires_at > now and edge.target not in seen:
                    seen.add(edge.target)
                    stack.append(edge.target)
        return False


def check(evidence: Evidence) -> Iterator[Violation]:
    expiries = {(row.zone_id, row.id): row.expires_at for row in evidence.rows.edges}
    graph = Graph()
    for event, data in readable_events(evidence):
        if event.type == "delegation.create":
            # If retention has deleted the row, the expiry is unknown and is not checked.
            edge = _to_edge(event, data, expiries.get((event.zone_id, event.subject), NEVER_EXPIRES))
            yield from _check_attenuation(evidence, event, data, edge, graph)
            if graph.has_path(event.zone_id, edge.target, edge.source, event.at):
                detail = f"delegation {edge.id} closes a cycle from {edge.source} to {edge.target} and back"
                yield Violation(NAME, event.zone_id, edge.id, detail, event.pos)
            graph.add(event.zone_id, edge)
        elif event.type in ("delegation.revoke", "delegation.expire"):
            graph.remove(event.zone_id, event.subject)


def _to_edge(event: Event, data: EventData, expires_at: Millis) -> Edge:
    return Edge(
        event.subject, data.source_session_id or "", data.target_session_id or "", frozenset(data.scopes), expires_at
    )


def _check_attenuation(
    evidence: Evidence, event: Event, data: EventData, edge: Edge, graph: Graph
) -> Iterator[Violation]:
    if data.parent_edge_id is None:
        return
    parent = graph.edges.get((event.zone_id, data.parent_edge_id))
    if parent is None:
        if evidence.is_log_complete:
            yield _violation(event, f"from parent {data.parent_edge_id}, which was not active")
        return
    if parent.expires_at <= event.at:
        yield _violation(event, f"from parent {parent.id}, which had expired")
    if parent.target != edge.source:
        yield _violation(event, f"by {edge.source} from parent {parent.id}, which leads to {parent.target}")
    if extra_scopes := sorted(edge.scopes - parent.scopes):
        yield _violation(event, f"with {', '.join(extra_scopes)}, which its parent {parent.id} does not have")
    if edge.expires_at != NEVER_EXPIRES and edge.expires_at > parent.expires_at:
        yield _violation(event, f"for longer than its parent {parent.id}")


def _violation(event: Event, how: str) -> Violation:
    return Violation(NAME, event.zone_id, event.subject, f"delegation {event.subject} was created {how}", event.pos)
