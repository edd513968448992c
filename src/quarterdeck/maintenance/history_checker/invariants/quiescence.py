"""Nothing is left unfinished.

After the load has stopped, no cascade is unfinished, no invocation of an ended session is pending or running, and no
delegation from or to an ended session is active. No session, attempt or delegation is long overdue. No task is waiting
for a time long past or for tasks that have all ended, and no task is held by an agent that is missing, stale or
terminated. `qd check` without `--history` compares the counters with the rows.

If the servers are still working, this invariant reports what they are about to finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.ids import Ref
from quarterdeck.maintenance.history_checker.model import (
    EdgeRow,
    Evidence,
    InvocationRow,
    SessionRow,
    TaskRow,
    Violation,
)
from quarterdeck.maintenance.history_checker.nouns import INVOCATION, TASK

NAME = "rest"
OVERDUE_AFTER = 2 * MINUTE
"""How long after an expiry or a deadline a sweep must have acted. By default the slowest sweep runs every minute."""


def check(evidence: Evidence) -> Iterator[Violation]:
    rows, ended_sessions = evidence.rows, EndedSessions(evidence)
    for cascade in rows.cascades:
        if cascade.finished_at is not None:
            continue
        target = cascade.target_id or f"zone {cascade.zone_id}"
        detail = f"cascade {cascade.id} of {target} has {cascade.remaining} sessions left"
        yield Violation(NAME, cascade.zone_id, cascade.target_id or cascade.id, detail)
    for session in rows.sessions:
        yield from _check_session(session, ended_sessions)
    for invocation in rows.invocations:
        if invocation.status not in INVOCATION.final_states:
            yield from _check_invocation(invocation, ended_sessions)
    for edge in rows.edges:
        if edge.status == "active":
            yield from _check_edge(edge, ended_sessions)
    yield from _check_tasks(evidence, ended_sessions.is_long_past)


class EndedSessions:
    """The sessions that have ended, and whether a time passed so long ago that a sweep must have run since."""

    def __init__(self, evidence: Evidence) -> None:
        self.now = evidence.rows.now
        self._ended: set[Ref] = set()
        self._existing: set[Ref] = set()
        for row in evidence.rows.sessions:
            self._existing.add((row.zone_id, row.id))
            if row.terminated_at is not None:
                self._ended.add((row.zone_id, row.id))

    def has_ended(self, zone_id: str, session_id: str | None) -> bool:
        """A session without a row counts as ended: retention deletes only ended sessions."""
        ref = (zone_id, session_id or "")
        return session_id is not None and (ref in self._ended or ref not in self._existing)

    def is_long_past(self, time: Millis | None) -> bool:
        return time is not None and time <= self.now - OVERDUE_AFTER


def _check_session(row: SessionRow, ended_sessions: EndedSessions) -> Iterator[Violation]:
    if row.terminated_at is None and ended_sessions.is_long_past(row.expires_at):
        yield _violation(row, f"session {row.id} has expired, but was not terminated")


def _check_invocation(row: InvocationRow, ended_sessions: EndedSessions) -> Iterator[Violation]:
    for session_id in (row.source_session_id, row.target_session_id):
        if ended_sessions.has_ended(row.zone_id, session_id):
            yield _violation(row, f"invocation {row.id} is {row.status}, but its session {session_id} has ended")
    for name, time in (("deadline", row.deadline_at), ("lease", row.lease_expires_at)):
        if ended_sessions.is_long_past(time):
            yield _violation(row, f"invocation {row.id} is {row.status}, but its {name} passed long ago")


def _check_edge(row: EdgeRow, ended_sessions: EndedSessions) -> Iterator[Violation]:
    if ended_sessions.is_long_past(row.expires_at):
        yield _violation(row, f"delegation {row.id} has expired, but was not marked as expired")
    elif row.expires_at > ended_sessions.now:
        # An expired delegation no longer counts, even before a sweep marks it as expired.
        for session_id in (row.source_session_id, row.target_session_id):
            if ended_sessions.has_ended(row.zone_id, session_id):
                yield _violation(row, f"delegation {row.id} is active, but its session {session_id} has ended")


def _violation(row: SessionRow | InvocationRow | EdgeRow, detail: str) -> Violation:
    return Violation(NAME, row.zone_id, row.id, detail)


WAITS_FOR_TIME, WAITS_FOR_TASKS = 1, 2
"""Values of the column `waits`: what a task waits for, besides an agent."""
IsLongPast = Callable[[Millis | None], bool]


def _check_tasks(evidence: Evidence, is_long_past: IsLongPast) -> Iterator[Violation]:
    ended_tasks: set[Ref] = set()
    waiting_tasks: set[Ref] = set()
    for row in evidence.rows.tasks:
        ref = (row.zone_id, row.id)
        if row.final or row.status in ("COMPLETED", "ARCHIVED"):
            ended_tasks.add(ref)
        elif row.waits_for == WAITS_FOR_TASKS:
            waiting_tasks.add(ref)
        if (detail := _stuck_reason(row, is_long_past)) is not None:
            yield Violation(NAME, *ref, f"task {row.id} is {row.status}, but {detail}")
    for dependency in evidence.rows.dependencies:
        if (dependency.zone_id, dependency.depends_on) not in ended_tasks:
            waiting_tasks.discard((dependency.zone_id, dependency.task_id))
    for ref in sorted(waiting_tasks):
        yield Violation(NAME, *ref, f"task {ref[1]} is waiting for dependencies, but all of them have ended")


def _stuck_reason(row: TaskRow, is_long_past: IsLongPast) -> str | None:
    if row.dependents_pending:
        return "its dependents were not unblocked"
    if row.waits_for == WAITS_FOR_TIME and is_long_past(row.available_at):
        return "the time it is waiting for passed long ago"
    if row.status not in TASK.held_states:
        return None
    if row.agent_status is None or row.agent_status in ("ERROR", "TERMINATED"):
        return f"its agent {row.agent_id} is {row.agent_status or 'missing'}"
    if is_long_past(row.agent_stale_at):
        return f"its agent {row.agent_id} has sent no heartbeat for too long"
    return "its time-out passed long ago" if is_long_past(row.timeout_at) else None
