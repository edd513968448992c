"""Everything has come to rest.

When nothing is asked any more, what has ended has nothing left that goes on: no cascade is half-way, no invocation of
an ended session waits or runs, no edge from or to one is active. And nothing is long past its time: no session, no
attempt at an invocation, no edge. (That counters are what the rows say is `qd check` itself.) Asked while the servers
still settle, this finds what is about to be settled.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.maintenance.history_checker.invariants.tasks.rest import judge as of_tasks
from quarterdeck.maintenance.history_checker.model import (
    ENDED_STATES,
    EdgeRow,
    Evidence,
    Finding,
    InvocationRow,
    Ref,
    SessionRow,
)

NAME = "rest"
SWEPT_WITHIN = 2 * MINUTE
"""For the sweeps of what is past its time: the slowest comes every minute by itself."""


def judge(evidence: Evidence) -> Iterator[Finding]:
    rows, over = evidence.rows, Over(evidence)
    for cascade in rows.cascades:
        if cascade.finished_at is not None:
            continue
        what = cascade.target_id or f"the zone {cascade.zone_id}"
        detail = f"the cascade {cascade.id} of {what} has {cascade.left} left to settle"
        yield Finding(NAME, cascade.zone_id, cascade.target_id or cascade.id, detail)
    for session in rows.sessions:
        yield from _session(session, over)
    for invocation in rows.invocations:
        if invocation.status not in ENDED_STATES:
            yield from _invocation(invocation, over)
    for edge in rows.edges:
        if edge.status == "active":
            yield from _edge(edge, over)
    yield from of_tasks(evidence, NAME, over.long_past)


class Over:
    """Which sessions have ended, and which instants passed so long ago that a sweep has come since."""

    def __init__(self, evidence: Evidence) -> None:
        self.now = evidence.rows.now
        self._ended: set[Ref] = set()
        self._known: set[Ref] = set()
        for row in evidence.rows.sessions:
            self._known.add((row.zone_id, row.id))
            if row.terminated_at is not None:
                self._ended.add((row.zone_id, row.id))

    def session(self, zone_id: str, session_id: str | None) -> bool:
        """One whose row is gone ended long ago."""
        ref = (zone_id, session_id or "")
        return session_id is not None and (ref in self._ended or ref not in self._known)

    def long_past(self, at: Millis | None) -> bool:
        return at is not None and at <= self.now - SWEPT_WITHIN


def _session(row: SessionRow, over: Over) -> Iterator[Finding]:
    if row.terminated_at is None and over.long_past(row.expires_at):
        yield _found(row, f"the session {row.id} is past its time, and was not ended")


def _invocation(row: InvocationRow, over: Over) -> Iterator[Finding]:
    for name in (row.source_session_id, row.target_session_id):
        if over.session(row.zone_id, name):
            yield _found(row, f"the invocation {row.id} is {row.status}, and its session {name} has ended")
    for what, at in (("deadline", row.deadline_at), ("lease", row.lease_expires_at)):
        if over.long_past(at):
            yield _found(row, f"the invocation {row.id} is {row.status}, and its {what} is long past")


def _edge(row: EdgeRow, over: Over) -> Iterator[Finding]:
    if over.long_past(row.expires_at):
        yield _found(row, f"the delegation {row.id} is past its time, and was not marked")
    elif row.expires_at > over.now:
        # A moment past its time it is over already, by another name, which a sweep writes down.
        for name in (row.source_session_id, row.target_session_id):
            if over.session(row.zone_id, name):
                yield _found(row, f"the delegation {row.id} is active, and its session {name} has ended")


def _found(row: SessionRow | InvocationRow | EdgeRow, detail: str) -> Finding:
    return Finding(NAME, row.zone_id, row.id, detail)
