"""The rows agree with the event log.

Every created session, invocation, delegation and task has a row. Every row has a creation event, and the state in the
row is that of the last event. So a call with an unknown outcome took effect completely or not at all: a row without its
event, or an event without its row, is a violation. Retention deletes the rows of ended objects, so a missing row is
allowed if the object ended more than a day ago.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import TERMINATED, Evidence, Ref, Violation
from quarterdeck.maintenance.history_checker.replay import (
    INVOCATION_STATE_AFTER,
    SessionReplay,
    readable_events,
    replay_sessions,
)
from quarterdeck.maintenance.history_checker.task_model import TaskEventData
from quarterdeck.maintenance.history_checker.task_replay import TaskReplay

NAME = "agreement"
EDGE_STATES = {"delegation.create": "active", "delegation.revoke": "revoked", "delegation.expire": "expired"}


def check(evidence: Evidence) -> Iterator[Violation]:
    sessions = replay_sessions(evidence)
    yield from _check_sessions(evidence, sessions)
    yield from _check_keys(evidence, sessions)
    yield from _check_cascades(evidence)
    yield from _check_states(evidence, INVOCATION_STATE_AFTER, "invocation", _invocation_states(evidence))
    yield from _check_states(evidence, EDGE_STATES, "delegation", _edge_states(evidence))
    yield from _check_tasks(evidence)


def _check_sessions(evidence: Evidence, sessions: SessionReplay) -> Iterator[Violation]:
    existing: set[Ref] = set()
    for row in evidence.rows.sessions:
        existing.add((row.zone_id, row.id))
        session = sessions.get(row.zone_id, row.id)
        if session is None:
            if evidence.is_log_complete:
                yield _violation(row.zone_id, row.id, f"session {row.id} has a row, but no creation event")
        elif (row.terminated_at is None) != (session.ended_pos is None):
            log_state = "did not end" if session.ended_pos is None else f"ended at {session.ended_pos}"
            yield _violation(row.zone_id, row.id, f"session {row.id} is {row.status}, but in the event log {log_state}")
        elif (row.status == TERMINATED) != (session.terminated_pos is not None or session.ended_pos == 0):
            yield _violation(row.zone_id, row.id, f"session {row.id} is {row.status}, but not in the event log")
        elif row.status != TERMINATED and (row.status == "suspended") != session.is_suspended and session.spawned_pos:
            log_state = "suspended" if session.is_suspended else "active"
            yield _violation(row.zone_id, row.id, f"session {row.id} is {row.status}, but {log_state} in the event log")
    for session in sessions:
        if (session.zone_id, session.id) not in existing and not _is_old(session.terminated_at, evidence):
            detail = f"session {session.id} was spawned at {session.spawned_pos}, but has no row"
            yield Violation(NAME, session.zone_id, session.id, detail, session.spawned_pos)


def _check_keys(evidence: Evidence, sessions: SessionReplay) -> Iterator[Violation]:
    for row in evidence.rows.keys:
        if evidence.is_log_complete and sessions.get(row.zone_id, row.subject_id) is None:
            detail = f"key {row.key!r} names {row.subject_id}, which was never spawned"
            yield _violation(row.zone_id, row.subject_id, detail)


def _check_cascades(evidence: Evidence) -> Iterator[Violation]:
    started_cascades = {
        (event.zone_id, data.cascade_id) for event, data in readable_events(evidence) if event.type == "cascade.begin"
    }
    for row in evidence.rows.cascades:
        if evidence.is_log_complete and (row.zone_id, row.id) not in started_cascades:
            subject = row.target_id or row.zone_id
            yield _violation(row.zone_id, subject, f"cascade {row.id} of {subject} has a row, but no start event")


RefState = tuple[Ref, str]


def _invocation_states(evidence: Evidence) -> Iterator[RefState]:
    return (((row.zone_id, row.id), row.status) for row in evidence.rows.invocations)


def _edge_states(evidence: Evidence) -> Iterator[RefState]:
    return (((row.zone_id, row.id), row.status) for row in evidence.rows.edges)


def _check_states(
    evidence: Evidence, states_by_event: dict[str, str], noun: str, rows: Iterator[RefState]
) -> Iterator[Violation]:
    last_events: dict[Ref, tuple[str, int, Millis]] = {}
    """(state, position, time)"""
    for event, _ in readable_events(evidence):
        if event.type in states_by_event:
            last_events[event.zone_id, event.subject] = (states_by_event[event.type], event.pos, event.at)
    existing: set[Ref] = set()
    for ref, status in rows:
        existing.add(ref)
        logged = last_events.get(ref)
        if logged is None:
            if evidence.is_log_complete:
                yield _violation(*ref, f"{noun} {ref[1]} has a row, but no creation event")
        elif logged[0] != status:
            detail = f"{noun} {ref[1]} is {status}, but {logged[0]} in the event log"
            yield Violation(NAME, *ref, detail, logged[1])
    for ref, (status, pos, at) in last_events.items():
        if ref not in existing and not (status not in ("pending", "running", "active") and _is_old(at, evidence)):
            yield Violation(NAME, *ref, f"{noun} {ref[1]} is {status} in the event log, but has no row", pos)


def _is_old(ended_at: Millis | None, evidence: Evidence) -> bool:
    return ended_at is not None and ended_at < evidence.rows.now - DAY


def _violation(zone_id: str, subject: str, detail: str) -> Violation:
    return Violation(NAME, zone_id, subject, detail)


OPEN_TASK_STATES = frozenset({"PENDING", "ASSIGNED", "RUNNING", "PAUSED"})


def _check_tasks(evidence: Evidence) -> Iterator[Violation]:
    last_events: dict[Ref, tuple[Event, TaskEventData]] = {
        (event.zone_id, event.subject): (event, data) for event, data, _ in TaskReplay(evidence).walk()
    }
    existing: set[Ref] = set()
    for row in evidence.rows.tasks:
        ref = (row.zone_id, row.id)
        existing.add(ref)
        if (logged := last_events.get(ref)) is None:
            if evidence.is_log_complete:
                yield Violation(NAME, *ref, f"task {row.id} has a row, but no creation event")
            continue
        event, data = logged
        if event.to_state != row.status:
            detail = f"task {row.id} is {row.status}, but {event.to_state} in the event log"
            yield Violation(NAME, *ref, detail, event.pos)
        elif data.attempt != row.attempt:
            detail = f"task {row.id} is in attempt {row.attempt}, but its last event has attempt {data.attempt}"
            yield Violation(NAME, *ref, detail, event.pos)
    for ref, (event, _) in last_events.items():
        is_old = event.to_state not in OPEN_TASK_STATES and event.at < evidence.rows.now - DAY
        if ref not in existing and not is_old:
            detail = f"task {ref[1]} is {event.to_state} in the event log, but has no row"
            yield Violation(NAME, *ref, detail, event.pos)
