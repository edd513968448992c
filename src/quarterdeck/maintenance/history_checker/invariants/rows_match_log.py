"""The rows are what the log says: what began is there, what is there began, and each is in the state it was last told
to be in.

So a call whose outcome nobody heard of was done whole or not at all: one that left a row without its event, or an event
without its row, is found here. Rows of what has ended are removed after days; what ended a day before and is gone is
not missed.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import TERMINATED, Evidence, Ref, Violation
from quarterdeck.maintenance.history_checker.replay import STATE_AFTER, SessionReplay, readable_events, replay_sessions
from quarterdeck.maintenance.history_checker.task_model import TaskEventData
from quarterdeck.maintenance.history_checker.task_replay import TaskReplay

NAME = "agreement"
EDGE_STATES = {"delegation.create": "active", "delegation.revoke": "revoked", "delegation.expire": "expired"}


def check(evidence: Evidence) -> Iterator[Violation]:
    sessions = replay_sessions(evidence)
    yield from _check_sessions(evidence, sessions)
    yield from _check_keys(evidence, sessions)
    yield from _check_cascades(evidence)
    yield from _check_states(evidence, STATE_AFTER, "invocation", _invocation_states(evidence))
    yield from _check_states(evidence, EDGE_STATES, "delegation", _edge_states(evidence))
    yield from _check_tasks(evidence, NAME)


def _check_sessions(evidence: Evidence, sessions: SessionReplay) -> Iterator[Violation]:
    existing: set[Ref] = set()
    for row in evidence.rows.sessions:
        existing.add((row.zone_id, row.id))
        session = sessions.get(row.zone_id, row.id)
        if session is None:
            if evidence.is_log_complete:
                yield _violation(row.zone_id, row.id, f"the session {row.id} is there, and the log never let it begin")
        elif (row.terminated_at is None) != (session.ended_pos is None):
            log_state = "goes on" if session.ended_pos is None else f"ended at {session.ended_pos}"
            yield _violation(
                row.zone_id, row.id, f"the session {row.id} is {row.status}, and by the log it {log_state}"
            )
        elif (row.status == TERMINATED) != (session.terminated_pos is not None or session.ended_pos == 0):
            yield _violation(row.zone_id, row.id, f"the session {row.id} is {row.status}, and the log says otherwise")
        elif row.status != TERMINATED and (row.status == "suspended") != session.is_suspended and session.spawned_pos:
            log_state = "asleep" if session.is_suspended else "awake"
            yield _violation(row.zone_id, row.id, f"the session {row.id} is {row.status}, and by the log {log_state}")
    for session in sessions:
        if (session.zone_id, session.id) not in existing and not _is_old(session.terminated_at, evidence):
            detail = f"the session {session.id} began at {session.spawned_pos}, and is not there"
            yield Violation(NAME, session.zone_id, session.id, detail, session.spawned_pos)


def _check_keys(evidence: Evidence, sessions: SessionReplay) -> Iterator[Violation]:
    for row in evidence.rows.keys:
        if evidence.is_log_complete and sessions.get(row.zone_id, row.subject_id) is None:
            detail = f"the key {row.key!r} stands for {row.subject_id}, which never began"
            yield _violation(row.zone_id, row.subject_id, detail)


def _check_cascades(evidence: Evidence) -> Iterator[Violation]:
    started = {
        (event.zone_id, data.cascade_id) for event, data in readable_events(evidence) if event.type == "cascade.begin"
    }
    for row in evidence.rows.cascades:
        if evidence.is_log_complete and (row.zone_id, row.id) not in started:
            subject = row.target_id or row.zone_id
            yield _violation(row.zone_id, subject, f"the cascade {row.id} of {subject} is there, and never began")


RefState = tuple[Ref, str]


def _invocation_states(evidence: Evidence) -> Iterator[RefState]:
    return (((row.zone_id, row.id), row.status) for row in evidence.rows.invocations)


def _edge_states(evidence: Evidence) -> Iterator[RefState]:
    return (((row.zone_id, row.id), row.status) for row in evidence.rows.edges)


def _check_states(
    evidence: Evidence, states_by_event: dict[str, str], noun: str, rows: Iterator[RefState]
) -> Iterator[Violation]:
    last: dict[Ref, tuple[str, int, Millis]] = {}
    for event, _ in readable_events(evidence):
        if event.type in states_by_event:
            last[event.zone_id, event.subject] = (states_by_event[event.type], event.pos, event.at)
    existing: set[Ref] = set()
    for ref, status in rows:
        existing.add(ref)
        logged = last.get(ref)
        if logged is None:
            if evidence.is_log_complete:
                yield _violation(*ref, f"the {noun} {ref[1]} is there, and the log never let it begin")
        elif logged[0] != status:
            detail = f"the {noun} {ref[1]} is {status}, and was last told to be {logged[0]}"
            yield Violation(NAME, *ref, detail, logged[1])
    for ref, (status, pos, at) in last.items():
        if ref not in existing and not (status not in ("pending", "running", "active") and _is_old(at, evidence)):
            yield Violation(NAME, *ref, f"the {noun} {ref[1]} was told to be {status}, and is not there", pos)


def _is_old(ended: Millis | None, evidence: Evidence) -> bool:
    return ended is not None and ended < evidence.rows.now - DAY


def _violation(zone_id: str, subject: str, detail: str) -> Violation:
    return Violation(NAME, zone_id, subject, detail)


OPEN_TASK_STATES = frozenset({"PENDING", "ASSIGNED", "RUNNING", "PAUSED"})


def _check_tasks(evidence: Evidence, invariant: str) -> Iterator[Violation]:
    last: dict[Ref, tuple[Event, TaskEventData]] = {
        (event.zone_id, event.subject): (event, told) for event, told, _ in TaskReplay(evidence).walk()
    }
    existing: set[Ref] = set()
    for row in evidence.rows.tasks:
        ref = (row.zone_id, row.id)
        existing.add(ref)
        if (logged := last.get(ref)) is None:
            if evidence.is_log_complete:
                yield Violation(invariant, *ref, f"the task {row.id} is there, and the log never let it begin")
            continue
        event, data = logged
        if event.to_state != row.status:
            detail = f"the task {row.id} is {row.status}, and was last told to be {event.to_state}"
            yield Violation(invariant, *ref, detail, event.pos)
        elif data.attempt != row.attempt:
            detail = f"the task {row.id} is in attempt {row.attempt}, and was last told to be in {data.attempt}"
            yield Violation(invariant, *ref, detail, event.pos)
    for ref, (event, _) in last.items():
        is_old = event.to_state not in OPEN_TASK_STATES and event.at < evidence.rows.now - DAY
        if ref not in existing and not is_old:
            detail = f"the task {ref[1]} was told to be {event.to_state}, and is not there"
            yield Violation(invariant, *ref, detail, event.pos)
