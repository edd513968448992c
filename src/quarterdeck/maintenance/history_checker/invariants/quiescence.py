"""Everything has come to rest.

When nothing is asked any more, what has ended has nothing left that goes on: no cascade is half-way, no invocation of
an ended session waits or runs, no edge from or to one is active. And nothing is long past its time: no session, no
attempt at an invocation, no edge. (That counters are what the rows say is `qd check` itself.) Asked while the servers
still settle, this finds what is about to be settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.maintenance.history_checker.model import (
    ENDED_STATES,
    EdgeRow,
    Evidence,
    InvocationRow,
    Ref,
    SessionRow,
    Violation,
)
from quarterdeck.maintenance.history_checker.task_model import TaskRow
from quarterdeck.maintenance.history_checker.task_replay import HELD_STATES

NAME = "rest"
SWEEP_DELAY = 2 * MINUTE
"""For the sweeps of what is past its time: the slowest comes every minute by itself."""


def check(evidence: Evidence) -> Iterator[Violation]:
    rows, ended = evidence.rows, EndedSessions(evidence)
    for cascade in rows.cascades:
        if cascade.finished_at is not None:
            continue
        noun = cascade.target_id or f"the zone {cascade.zone_id}"
        detail = f"the cascade {cascade.id} of {noun} has {cascade.remaining} left to settle"
        yield Violation(NAME, cascade.zone_id, cascade.target_id or cascade.id, detail)
    for session in rows.sessions:
        yield from _check_session(session, ended)
    for invocation in rows.invocations:
        if invocation.status not in ENDED_STATES:
            yield from _check_invocation(invocation, ended)
    for edge in rows.edges:
        if edge.status == "active":
            yield from _check_edge(edge, ended)
    yield from _check_tasks(evidence, NAME, ended.is_long_past)


class EndedSessions:
    """Which sessions have ended, and which instants passed so long ago that a sweep has come since."""

    def __init__(self, evidence: Evidence) -> None:
        self.now = evidence.rows.now
        self._ended: set[Ref] = set()
        self._existing: set[Ref] = set()
        for row in evidence.rows.sessions:
            self._existing.add((row.zone_id, row.id))
            if row.terminated_at is not None:
                self._ended.add((row.zone_id, row.id))

    def has_ended(self, zone_id: str, session_id: str | None) -> bool:
        """One whose row is gone ended long ago."""
        ref = (zone_id, session_id or "")
        return session_id is not None and (ref in self._ended or ref not in self._existing)

    def is_long_past(self, at: Millis | None) -> bool:
        return at is not None and at <= self.now - SWEEP_DELAY


def _check_session(row: SessionRow, ended: EndedSessions) -> Iterator[Violation]:
    if row.terminated_at is None and ended.is_long_past(row.expires_at):
        yield _violation(row, f"the session {row.id} is past its time, and was not ended")


def _check_invocation(row: InvocationRow, ended: EndedSessions) -> Iterator[Violation]:
    for name in (row.source_session_id, row.target_session_id):
        if ended.has_ended(row.zone_id, name):
            yield _violation(row, f"the invocation {row.id} is {row.status}, and its session {name} has ended")
    for noun, at in (("deadline", row.deadline_at), ("lease", row.lease_expires_at)):
        if ended.is_long_past(at):
            yield _violation(row, f"the invocation {row.id} is {row.status}, and its {noun} is long past")


def _check_edge(row: EdgeRow, ended: EndedSessions) -> Iterator[Violation]:
    if ended.is_long_past(row.expires_at):
        yield _violation(row, f"the delegation {row.id} is past its time, and was not marked")
    elif row.expires_at > ended.now:
        # A moment past its time it is over already, by another name, which a sweep writes down.
        for name in (row.source_session_id, row.target_session_id):
            if ended.has_ended(row.zone_id, name):
                yield _violation(row, f"the delegation {row.id} is active, and its session {name} has ended")


def _violation(row: SessionRow | InvocationRow | EdgeRow, detail: str) -> Violation:
    return Violation(NAME, row.zone_id, row.id, detail)


WAITS_FOR_TIME, WAITS_FOR_TASKS = 1, 2
"""What a task may wait for besides an agent, as its row has it."""
IsLongPast = Callable[[Millis | None], bool]


def _check_tasks(evidence: Evidence, invariant: str, is_long_past: IsLongPast) -> Iterator[Violation]:
    finished: set[Ref] = set()
    waiting: set[Ref] = set()
    for row in evidence.rows.tasks:
        ref = (row.zone_id, row.id)
        if row.final or row.status in ("COMPLETED", "ARCHIVED"):
            finished.add(ref)
        elif row.waits == WAITS_FOR_TASKS:
            waiting.add(ref)
        if (detail := _stuck_reason(row, is_long_past)) is not None:
            yield Violation(invariant, *ref, f"the task {row.id} is {row.status}, and {detail}")
    for edge in evidence.rows.dependencies:
        if (edge.zone_id, edge.depends_on) not in finished:
            waiting.discard((edge.zone_id, edge.task_id))
    for ref in sorted(waiting):
        yield Violation(invariant, *ref, f"the task {ref[1]} waits for others, and all of them are over")


def _stuck_reason(row: TaskRow, is_long_past: IsLongPast) -> str | None:
    if row.spreads:
        return "some that depend on it have not heard of its end"
    if row.waits == WAITS_FOR_TIME and is_long_past(row.available_at):
        return "the moment that it waits for is long past"
    if row.status not in HELD_STATES:
        return None
    if row.agent_status is None or row.agent_status in ("ERROR", "TERMINATED"):
        return f"its agent {row.agent_id} is {row.agent_status or 'not there'}"
    if is_long_past(row.agent_silent_from):
        return f"its agent {row.agent_id} was not heard of for long"
    return "its time is long over" if is_long_past(row.timeout_at) else None
