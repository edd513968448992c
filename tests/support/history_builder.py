"""A small valid history, written by hand: the event log, the rows and the clients' recorded calls of a run without
violations. Tests then plant one violation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import pytest

from quarterdeck.core.clock import iso
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import (
    CallRequest,
    CallResponse,
    CascadeRow,
    DependencyRow,
    EdgeRow,
    Evidence,
    InvocationRow,
    KeyRow,
    Lease,
    MarkedSessionRow,
    RecordedCall,
    Rows,
    SessionRow,
    TaskRow,
    Violation,
)
from quarterdeck.maintenance.history_checker.run import check_invariants

ZONE = "z"
APP = "app"
START = 1_700_000_000_000
LIMITS = {
    "max_depth": 3,
    "max_children": 3,
    "max_tree_size": 4,
    "max_tree_spawns": 6,
    "max_concurrent": 5,
    "max_sessions": 6,
    "max_sessions_per_application": 6,
}
ZONE_LIMITS = {"max_sessions": 6, "max_children": 3}
"""The zone's own limits. The others are the platform's defaults."""


@dataclass
class HistoryBuilder:
    """The event log, the rows and the recorded calls, as lists that a test may change."""

    events: list[Event] = field(default_factory=list)
    calls: list[RecordedCall] = field(default_factory=list)
    sessions: dict[str, SessionRow] = field(default_factory=dict)
    keys: dict[str, KeyRow] = field(default_factory=dict)
    invocations: dict[str, InvocationRow] = field(default_factory=dict)
    edges: dict[str, EdgeRow] = field(default_factory=dict)
    cascades: list[CascadeRow] = field(default_factory=list)
    marked_sessions: list[MarkedSessionRow] = field(default_factory=list)
    tasks: dict[str, TaskRow] = field(default_factory=dict)
    dependencies: list[DependencyRow] = field(default_factory=list)
    floor: int = 0
    clock: int = START

    def build(self) -> Evidence:
        return Evidence(
            self.events,
            self.calls,
            Rows(
                now=self.clock,
                floor=self.floor,
                sessions=list(self.sessions.values()),
                keys=list(self.keys.values()),
                invocations=list(self.invocations.values()),
                edges=list(self.edges.values()),
                cascades=self.cascades,
                marked_sessions=self.marked_sessions,
                tasks=list(self.tasks.values()),
                dependencies=self.dependencies,
            ),
        )

    # -- the log

    def add_event(
        self, event_type: str, subject: str, before: str | None = None, after: str | None = None, **data: object
    ) -> Event:
        self.clock += 10
        event = Event(
            len(self.events) + 1,
            f"e{len(self.events) + 1}",
            ZONE,
            event_type,
            subject,
            APP,
            before,
            after,
            json.dumps(data),
            None,
            self.clock,
        )
        self.events.append(event)
        return event

    def find_event(self, event_type: str, subject: str, number: int = 0) -> int:
        """Return the index in the log of the n-th event of this type and subject."""
        indexes = [i for i, e in enumerate(self.events) if (e.type, e.subject) == (event_type, subject)]
        return indexes[number]

    def insert_event(self, index: int, event: Event) -> None:
        """Insert an event and renumber the log."""
        self.events.insert(index, event)
        self._renumber()

    def remove_event(self, index: int) -> Event:
        removed = self.events.pop(index)
        self._renumber()
        return removed

    def _renumber(self) -> None:
        self.events = [msgspec.structs.replace(event, pos=n) for n, event in enumerate(self.events, 1)]

    def change_event(self, index: int, **changes: object) -> None:
        """Change fields of an event. Names that are not fields change its data."""
        event = self.events[index]
        field_changes = {name: changes.pop(name) for name in list(changes) if name in Event.__struct_fields__}
        data = json.dumps(json.loads(event.data) | changes)
        self.events[index] = msgspec.structs.replace(event, **({"data": data} | field_changes))

    # -- recorded calls

    def add_call(
        self, op: str, status: int | None, request: object, response: object = None, client: str = "a"
    ) -> RecordedCall:
        """A call that started shortly before now and got its response now."""
        number = len(self.calls)
        call = RecordedCall(
            client,
            number,
            self.clock - 5,
            self.clock + 4,
            op,
            ZONE,
            status,
            msgspec.json.decode(msgspec.json.encode(request), type=CallRequest),
            msgspec.json.decode(msgspec.json.encode(response), type=CallResponse | None),
            None,
            "h.jsonl",
            number + 1,
        )
        self.calls.append(call)
        return call

    # -- sessions

    def add_session(self, session_id: str, parent: str | None = None, ttl: int = 3_600_000, app: str = APP) -> Event:
        parent_row = self.sessions[parent] if parent else None
        expires = min(self.clock + 10 + ttl, parent_row.expires_at if parent_row else 2**60)
        depth, root = (parent_row.depth + 1, parent_row.root_id) if parent_row else (0, session_id)
        event = self.add_event(
            "session.spawn",
            session_id,
            None,
            "active",
            application_id=app,
            parent_id=parent,
            root_id=root,
            depth=depth,
            expires_at=iso(expires),
        )
        self.sessions[session_id] = SessionRow(
            ZONE, session_id, app, parent, root, depth, "active", json.dumps(LIMITS), event.at, expires, None
        )
        return event

    def spawn(
        self, session_id: str, parent: str | None = None, key: str | None = None, ttl: int = 3_600_000
    ) -> RecordedCall:
        self.add_session(session_id, parent, ttl)
        if key:
            self.keys[key] = KeyRow(ZONE, APP, key, session_id)
        request = {"application_id": APP, "parent_id": parent, "idempotency_key": key}
        return self.add_call("spawn", 201, request, {"id": session_id, "status": "active"})

    def change_suspension(self, verb: str, session_id: str, *also_changed: str) -> RecordedCall:
        before, after = ("active", "suspended") if verb == "suspend" else ("suspended", "active")
        for name in (session_id, *also_changed):
            self.add_event(f"session.{verb}", name, before, after, cause=session_id)
            self.sessions[name] = msgspec.structs.replace(self.sessions[name], status=after)
        return self.add_call(verb, 200, {"id": session_id}, {})

    def terminate_session(self, session_id: str, cause: str) -> None:
        row = self.sessions[session_id]
        event = self.add_event(
            "session.terminate", session_id, row.status, "terminated", cause=cause, reason="requested"
        )
        self.sessions[session_id] = msgspec.structs.replace(
            row, status="terminated", terminated_at=row.terminated_at or event.at
        )

    def end_session(self, session_id: str) -> None:
        """Terminate a session and revoke its active edges."""
        for edge in [*self.edges.values()]:
            if edge.status == "active" and session_id in (edge.source_session_id, edge.target_session_id):
                self.end_edge(edge.id)
        self.terminate_session(session_id, session_id)

    def begin_cascade(self, session_id: str, *others: str) -> None:
        event = self.add_event("cascade.begin", session_id, cascade_id=f"c-{session_id}", stamped=1 + len(others))
        self.cascades.append(CascadeRow(ZONE, f"c-{session_id}", session_id, 0, event.at))
        for name in (session_id, *others):
            self.sessions[name] = msgspec.structs.replace(self.sessions[name], terminated_at=event.at)
            self.marked_sessions.append(MarkedSessionRow(ZONE, f"c-{session_id}", name))

    # -- invocations

    def invoke(self, invocation_id: str, source: str | None = None, target: str | None = None) -> RecordedCall:
        refs = {"service_id": "svc", "source_session_id": source, "target_session_id": target}
        self.add_event("invocation.created", invocation_id, None, "pending", attempt=0, **refs)
        self.invocations[invocation_id] = InvocationRow(
            ZONE, invocation_id, "svc", f"key-{invocation_id}", "pending", source, target, None, None, None
        )
        return self.add_call(
            "invoke",
            201,
            {**refs, "idempotency_key": f"key-{invocation_id}"},
            {"id": invocation_id, "status": "pending"},
        )

    def change_state(self, invocation_id: str, verb: str, after: str, attempt: int, **data: object) -> Event:
        row = self.invocations[invocation_id]
        event = self.add_event(
            f"invocation.{verb}",
            invocation_id,
            row.status,
            after,
            attempt=attempt,
            source_session_id=row.source_session_id,
            target_session_id=row.target_session_id,
            **data,
        )
        self.invocations[invocation_id] = msgspec.structs.replace(row, status=after)
        return event

    def claim(self, invocation_id: str, attempt: int, client: str, token: str | None = None) -> Lease:
        self.change_state(invocation_id, "started", "running", attempt)
        lease = Lease(invocation_id, attempt, token or f"{invocation_id}-{attempt}-{client}")
        self.add_call("claim", 200, {"service_id": "svc"}, {"items": [msgspec.to_builtins(lease)]}, client=client)
        return lease

    def complete(self, lease: Lease, client: str, verb: str = "succeeded", after: str | None = None) -> RecordedCall:
        self.change_state(lease.id, verb, after or verb, lease.attempt)
        request = {"id": lease.id, "attempt_token": lease.attempt_token, "status": "succeeded"}
        return self.add_call("complete", 200, request, {"id": lease.id, "status": after or verb}, client=client)

    # -- delegations

    def delegate(self, edge_id: str, source: str, target: str, parent: str | None = None, *scopes: str) -> RecordedCall:
        refs = {"source_session_id": source, "target_session_id": target}
        event_data = {**refs, "parent_edge_id": parent, "scopes": scopes or ("read",)}
        self.add_event("delegation.create", edge_id, None, "active", epoch=1, **event_data)
        self.edges[edge_id] = EdgeRow(ZONE, edge_id, source, target, "active", 2**60, None)
        return self.add_call("delegate", 201, refs, {"id": edge_id, "status": "active"})

    def end_edge(self, edge_id: str) -> None:
        event = self.add_event("delegation.revoke", edge_id, "active", "revoked", epoch=2)
        self.edges[edge_id] = msgspec.structs.replace(self.edges[edge_id], status="revoked", ended_at=event.at)

    def revoke(self, edge_id: str) -> RecordedCall:
        self.end_edge(edge_id)
        return self.add_call("revoke", 200, {"id": edge_id}, {"revoked_edges": 1})


def build_valid_history() -> HistoryBuilder:
    history = HistoryBuilder()
    history.add_event("zone.create", ZONE, name=ZONE, quotas=ZONE_LIMITS)
    add_sessions(history)
    add_invocations(history)
    history.delegate("edge", "root", "left")
    history.delegate("edge-2", "right", "left")
    history.revoke("edge")
    history.delegate("edge-3", "right", "short-2")
    history.delegate("edge-4", "short-2", "unanswered", "edge-3")
    add_endings(history)
    return history


def add_sessions(history: HistoryBuilder) -> None:
    """A tree with keys, an expired session, a suspended one, and one whose response was lost."""
    history.spawn("root", key="k1")
    history.add_call("spawn", 200, {"application_id": APP, "idempotency_key": "k1"}, {"id": "root", "status": "active"})
    history.spawn("left", "root")
    history.spawn("leaf", "left")
    history.change_suspension("suspend", "left", "leaf")
    history.change_suspension("resume", "left", "leaf")
    history.spawn("right", key="k2")
    history.spawn("short", "right", key="k3", ttl=20)
    history.clock += 100
    # Expired and not swept yet: its slot and its key are free.
    history.spawn("short-2", "right", key="k3")
    history.terminate_session("short", "short")
    history.add_session("unanswered")
    history.keys["k4"] = KeyRow(ZONE, APP, "k4", "unanswered")
    history.add_call("spawn", None, {"application_id": APP, "idempotency_key": "k4"})
    history.add_call("spawn", 503, {"application_id": APP, "idempotency_key": "k5"}, {"error": "outcome_unknown"})
    history.add_call("spawn", 429, {"application_id": APP, "idempotency_key": "k6"}, {"error": "agent_limit_exceeded"})


def add_invocations(history: HistoryBuilder) -> None:
    """Invocations that succeed, lose a lease, are released, are canceled while running, and use up their retries."""
    history.add_event("service.register", "svc", None, "starting", application_id=APP)
    history.add_call("register", 201, {"application_id": APP}, {"id": "svc"})
    history.invoke("well", source="right")
    history.add_call(
        "invoke", 200, {"service_id": "svc", "idempotency_key": "key-well"}, {"id": "well", "status": "running"}
    )
    history.complete(history.claim("well", 1, "w1"), "w1")
    history.invoke("silent", source="right")
    first = history.claim("silent", 1, "w1")
    history.change_state("silent", "retried", "pending", 1, reason="lease_expired")
    second = history.claim("silent", 2, "w2")
    request = {"id": "silent", "attempt_token": first.attempt_token, "status": "succeeded"}
    history.add_call("complete", 409, request, {"error": "stale_attempt"}, client="w1")
    history.complete(second, "w2")
    history.invoke("back")
    released = history.claim("back", 1, "w1")
    history.change_state("back", "released", "pending", 0)
    history.add_call("release", 200, {"id": "back", "attempt_token": released.attempt_token}, {}, client="w1")
    history.complete(history.claim("back", 1, "w2"), "w2", "failed")
    history.invoke("stopped", target="right")
    canceled = history.claim("stopped", 1, "w1")
    history.change_state("stopped", "cancel_requested", "running", 1)
    history.add_call("cancel", 200, {"id": "stopped"}, {"id": "stopped", "status": "running"})
    history.complete(canceled, "w1", "canceled")
    history.invoke("exhausted")
    history.complete(history.claim("exhausted", 1, "w1"), "w1", "retried", "pending")
    history.complete(history.claim("exhausted", 2, "w1"), "w1", "dead")


def add_endings(history: HistoryBuilder) -> None:
    """A cascade ends a tree with its invocation and its edge. Its key is free again."""
    history.invoke("last", source="left")
    history.begin_cascade("root", "left", "leaf")
    history.terminate_session("leaf", "root")
    history.terminate_session("left", "root")
    history.change_state("last", "canceled", "canceled", 0)
    history.end_edge("edge-2")
    history.terminate_session("root", "root")
    history.add_call("terminate", 204, {"id": "root"})
    history.add_call("terminate", 204, {"id": "left"})
    history.spawn("root-2", key="k1")
    history.spawn("twig", "root-2")
    history.add_event("service.unregister", "svc", application_id=APP)
    history.add_event("service.register", "svc", None, "starting", application_id=APP)
    history.add_call("register", 200, {"application_id": APP}, {"id": "svc"})


PlantViolation = Callable[[HistoryBuilder], object]


def violations(history: HistoryBuilder) -> list[Violation]:
    return list(check_invariants(history.build()))


def parametrize_violations(plants_by_invariant: Mapping[str, Iterable[Callable[..., object]]]) -> pytest.MarkDecorator:
    """Runs a test for each planted violation, with the name of the invariant that must find it."""
    cases = [
        pytest.param(invariant, plant, id=f"{invariant}-{plant.__name__}")
        for invariant, plants in plants_by_invariant.items()
        for plant in plants
    ]
    return pytest.mark.parametrize(("invariant", "plant"), cases)


def require_only_violation_of(invariant: str, history: HistoryBuilder) -> list[Violation]:
    """Checks that only this invariant is violated, and that each finding says where. Returns the findings."""
    found = violations(history)
    assert {violation.promise for violation in found} == {invariant}, [violation.text() for violation in found]
    for violation in found:
        assert violation.zone_id == ZONE
        assert violation.subject
        assert violation.pos is not None or violation.call is not None or invariant in ("agreement", "rest", "refused")
    return found
