"""A small true history, written by hand: what a server's log and tables, and its clients' own lines, look like after a
morning's work in which nothing went wrong. Tests then put one thing wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import (
    CallRequest,
    CallResponse,
    CascadeRow,
    EdgeRow,
    Evidence,
    InvocationRow,
    KeyRow,
    Lease,
    RecordedCall,
    Rows,
    SessionRow,
)
from quarterdeck.maintenance.history_checker.task_model import DependencyRow, TaskRow

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
OWN = {"max_sessions": 6, "max_children": 3}
"""What the zone set by itself; the rest are the platform's."""


@dataclass
class Written:
    """The log, the tables and the histories, as lists that a test may change."""

    events: list[Event] = field(default_factory=list)
    calls: list[RecordedCall] = field(default_factory=list)
    sessions: dict[str, SessionRow] = field(default_factory=dict)
    keys: dict[str, KeyRow] = field(default_factory=dict)
    invocations: dict[str, InvocationRow] = field(default_factory=dict)
    edges: dict[str, EdgeRow] = field(default_factory=dict)
    cascades: list[CascadeRow] = field(default_factory=list)
    tasks: dict[str, TaskRow] = field(default_factory=dict)
    dependencies: list[DependencyRow] = field(default_factory=list)
    floor: int = 0
    now: int = START

    def evidence(self) -> Evidence:
        return Evidence(
            self.events,
            self.calls,
            Rows(
                now=self.now,
                floor=self.floor,
                sessions=list(self.sessions.values()),
                keys=list(self.keys.values()),
                invocations=list(self.invocations.values()),
                edges=list(self.edges.values()),
                cascades=self.cascades,
                tasks=list(self.tasks.values()),
                dependencies=self.dependencies,
            ),
        )

    # -- the log

    def event(
        self, kind: str, subject: str, before: str | None = None, after: str | None = None, **data: object
    ) -> Event:
        self.now += 10
        made = Event(
            len(self.events) + 1,
            f"e{len(self.events) + 1}",
            ZONE,
            kind,
            subject,
            APP,
            before,
            after,
            json.dumps(data),
            None,
            self.now,
        )
        self.events.append(made)
        return made

    def find(self, kind: str, subject: str, number: int = 0) -> int:
        """The index in the log of the n-th event of this kind."""
        found = [i for i, e in enumerate(self.events) if (e.type, e.subject) == (kind, subject)]
        return found[number]

    def insert(self, index: int, event: Event) -> None:
        """Into the midst of the log, as if it had always been there."""
        self.events.insert(index, event)
        self._number()

    def remove(self, index: int) -> Event:
        gone = self.events.pop(index)
        self._number()
        return gone

    def _number(self) -> None:
        self.events = [msgspec.structs.replace(event, pos=n) for n, event in enumerate(self.events, 1)]

    def change(self, index: int, **changed: object) -> None:
        """Another time or state for an event, or other data in it."""
        event = self.events[index]
        own = {name: changed.pop(name) for name in list(changed) if name in Event.__struct_fields__}
        data = json.dumps(json.loads(event.data) | changed)
        self.events[index] = msgspec.structs.replace(event, **({"data": data} | own))

    # -- what clients wrote

    def call(
        self, op: str, status: int | None, asked: object, answer: object = None, client: str = "a"
    ) -> RecordedCall:
        """Answered now, and asked a little before."""
        number = len(self.calls)
        made = RecordedCall(
            client,
            number,
            self.now - 5,
            self.now + 4,
            op,
            ZONE,
            status,
            msgspec.convert(asked, CallRequest),
            None if answer is None else msgspec.convert(answer, CallResponse),
            None,
            "h.jsonl",
            number + 1,
        )
        self.calls.append(made)
        return made

    # -- sessions

    def born(self, own: str, parent: str | None = None, ttl: int = 3_600_000, app: str = APP) -> Event:
        above = self.sessions[parent] if parent else None
        expires = min(self.now + 10 + ttl, above.expires_at if above else 2**60)
        depth, root = (above.depth + 1, above.root_id) if above else (0, own)
        event = self.event(
            "session.spawn",
            own,
            None,
            "active",
            application_id=app,
            parent_id=parent,
            root_id=root,
            depth=depth,
            expires_at=iso(expires),
        )
        self.sessions[own] = SessionRow(
            ZONE, own, app, parent, root, depth, "active", json.dumps(LIMITS), event.at, expires, None
        )
        return event

    def spawn(self, own: str, parent: str | None = None, key: str | None = None, ttl: int = 3_600_000) -> RecordedCall:
        self.born(own, parent, ttl)
        if key:
            self.keys[key] = KeyRow(ZONE, APP, key, own)
        asked = {"application_id": APP, "parent_id": parent, "idempotency_key": key}
        return self.call("spawn", 201, asked, {"id": own, "status": "active"})

    def told_to(self, verb: str, own: str, *also: str) -> RecordedCall:
        before, after = ("active", "suspended") if verb == "suspend" else ("suspended", "active")
        for name in (own, *also):
            self.event(f"session.{verb}", name, before, after, cause=own)
            self.sessions[name] = msgspec.structs.replace(self.sessions[name], status=after)
        return self.call(verb, 200, {"id": own}, {})

    def settle(self, own: str, cause: str) -> None:
        row = self.sessions[own]
        event = self.event("session.terminate", own, row.status, "terminated", cause=cause, reason="requested")
        self.sessions[own] = msgspec.structs.replace(
            row, status="terminated", terminated_at=row.terminated_at or event.at
        )

    def end(self, own: str) -> None:
        """With what it lent and was lent."""
        for edge in [*self.edges.values()]:
            if edge.status == "active" and own in (edge.source_session_id, edge.target_session_id):
                self.fall(edge.id)
        self.settle(own, own)

    def stamp(self, own: str, *also: str) -> None:
        event = self.event("cascade.begin", own, cascade_id=f"c-{own}", stamped=1 + len(also))
        self.cascades.append(CascadeRow(ZONE, f"c-{own}", own, 0, event.at))
        for name in (own, *also):
            self.sessions[name] = msgspec.structs.replace(self.sessions[name], terminated_at=event.at)

    # -- invocations

    def invoke(self, own: str, source: str | None = None, target: str | None = None) -> RecordedCall:
        named = {"service_id": "svc", "source_session_id": source, "target_session_id": target}
        self.event("invocation.created", own, None, "pending", attempt=0, **named)
        self.invocations[own] = InvocationRow(
            ZONE, own, "svc", f"key-{own}", "pending", source, target, None, None, None
        )
        return self.call("invoke", 201, {**named, "idempotency_key": f"key-{own}"}, {"id": own, "status": "pending"})

    def move(self, own: str, verb: str, after: str, attempt: int, **data: object) -> Event:
        row = self.invocations[own]
        event = self.event(
            f"invocation.{verb}",
            own,
            row.status,
            after,
            attempt=attempt,
            source_session_id=row.source_session_id,
            target_session_id=row.target_session_id,
            **data,
        )
        self.invocations[own] = msgspec.structs.replace(row, status=after)
        return event

    def claim(self, own: str, attempt: int, client: str, token: str | None = None) -> Lease:
        self.move(own, "started", "running", attempt)
        lease = Lease(own, attempt, token or f"{own}-{attempt}-{client}")
        self.call("claim", 200, {"service_id": "svc"}, {"items": [msgspec.to_builtins(lease)]}, client=client)
        return lease

    def complete(self, lease: Lease, client: str, verb: str = "succeeded", after: str | None = None) -> RecordedCall:
        self.move(lease.id, verb, after or verb, lease.attempt)
        asked = {"id": lease.id, "attempt_token": lease.attempt_token, "status": "succeeded"}
        return self.call("complete", 200, asked, {"id": lease.id, "status": after or verb}, client=client)

    # -- delegations

    def delegate(self, own: str, source: str, target: str, parent: str | None = None, *scopes: str) -> RecordedCall:
        named = {"source_session_id": source, "target_session_id": target}
        told = {**named, "parent_edge_id": parent, "scopes": scopes or ("read",)}
        self.event("delegation.create", own, None, "active", epoch=1, **told)
        self.edges[own] = EdgeRow(ZONE, own, source, target, "active", 2**60, None)
        return self.call("delegate", 201, named, {"id": own, "status": "active"})

    def fall(self, own: str) -> None:
        event = self.event("delegation.revoke", own, "active", "revoked", epoch=2)
        self.edges[own] = msgspec.structs.replace(self.edges[own], status="revoked", ended_at=event.at)

    def revoke(self, own: str) -> RecordedCall:
        self.fall(own)
        return self.call("revoke", 200, {"id": own}, {"revoked_edges": 1})


def a_true_history() -> Written:
    w = Written()
    w.event("zone.create", ZONE, name=ZONE, quotas=OWN)
    sessions(w)
    invocations(w)
    w.delegate("edge", "root", "left")
    w.delegate("edge-2", "right", "left")
    w.revoke("edge")
    w.delegate("edge-3", "right", "short-2")
    w.delegate("edge-4", "short-2", "unheard", "edge-3")
    endings(w)
    return w


def sessions(w: Written) -> None:
    """A tree with keys, one that its time ended, one that slept, and one whose answer never came."""
    w.spawn("root", key="k1")
    w.call("spawn", 200, {"application_id": APP, "idempotency_key": "k1"}, {"id": "root", "status": "active"})
    w.spawn("left", "root")
    w.spawn("leaf", "left")
    w.told_to("suspend", "left", "leaf")
    w.told_to("resume", "left", "leaf")
    w.spawn("right", key="k2")
    w.spawn("short", "right", key="k3", ttl=20)
    w.now += 100
    # Past its time, and not swept: its place and its key are free.
    w.spawn("short-2", "right", key="k3")
    w.settle("short", "short")
    w.born("unheard")
    w.keys["k4"] = KeyRow(ZONE, APP, "k4", "unheard")
    w.call("spawn", None, {"application_id": APP, "idempotency_key": "k4"})
    w.call("spawn", 503, {"application_id": APP, "idempotency_key": "k5"}, {"error": "outcome_unknown"})
    w.call("spawn", 429, {"application_id": APP, "idempotency_key": "k6"}, {"error": "agent_limit_exceeded"})


def invocations(w: Written) -> None:
    """One that went well, one whose first holder went silent, one given back, one canceled at work, one that died."""
    w.event("service.register", "svc", None, "starting", application_id=APP)
    w.call("register", 201, {"application_id": APP}, {"id": "svc"})
    w.invoke("well", source="right")
    w.call("invoke", 200, {"service_id": "svc", "idempotency_key": "key-well"}, {"id": "well", "status": "running"})
    w.complete(w.claim("well", 1, "w1"), "w1")
    w.invoke("silent", source="right")
    first = w.claim("silent", 1, "w1")
    w.move("silent", "retried", "pending", 1, reason="lease_expired")
    second = w.claim("silent", 2, "w2")
    asked = {"id": "silent", "attempt_token": first.attempt_token, "status": "succeeded"}
    w.call("complete", 409, asked, {"error": "stale_attempt"}, client="w1")
    w.complete(second, "w2")
    w.invoke("back")
    given = w.claim("back", 1, "w1")
    w.move("back", "released", "pending", 0)
    w.call("release", 200, {"id": "back", "attempt_token": given.attempt_token}, {}, client="w1")
    w.complete(w.claim("back", 1, "w2"), "w2", "failed")
    w.invoke("stopped", target="right")
    held = w.claim("stopped", 1, "w1")
    w.move("stopped", "cancel_requested", "running", 1)
    w.call("cancel", 200, {"id": "stopped"}, {"id": "stopped", "status": "running"})
    w.complete(held, "w1", "canceled")
    w.invoke("hopeless")
    w.complete(w.claim("hopeless", 1, "w1"), "w1", "retried", "pending")
    w.complete(w.claim("hopeless", 2, "w1"), "w1", "dead")


def endings(w: Written) -> None:
    """A tree is stamped and settled, its invocation and its edge go with it, and its key is free again."""
    w.invoke("last", source="left")
    w.stamp("root", "left", "leaf")
    w.settle("leaf", "root")
    w.settle("left", "root")
    w.move("last", "canceled", "canceled", 0)
    w.fall("edge-2")
    w.settle("root", "root")
    w.call("terminate", 204, {"id": "root"})
    w.call("terminate", 204, {"id": "left"})
    w.spawn("root-2", key="k1")
    w.spawn("twig", "root-2")
    w.event("service.unregister", "svc", application_id=APP)
    w.event("service.register", "svc", None, "starting", application_id=APP)
    w.call("register", 200, {"application_id": APP}, {"id": "svc"})


Plant = Callable[[Written], object]
