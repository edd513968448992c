"""The rows agree with the event log.

Every created session, invocation, delegation and task has a row. Every row has a creation event, and the state in the
row is that of the last event. So a call with an unknown outcome took effect completely or not at all: a row without its
event, or an event without its row, is a violation. Retention deletes the rows of ended objects, so a missing row is
allowed if the object ended more than a day ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.core.ids import Ref
from quarterdeck.maintenance.history_checker.model import TERMINATED, Evidence, Violation
from quarterdeck.maintenance.history_checker.nouns import DELEGATION, INVOCATION, TASK, Noun, noun_events
from quarterdeck.maintenance.history_checker.session_replay import SessionReplay, readable_events, replay_sessions

NAME = "agreement"
NOUNS = (INVOCATION, DELEGATION, TASK)


def check(evidence: Evidence) -> Iterator[Violation]:
    sessions = replay_sessions(evidence)
    yield from _check_sessions(evidence, sessions)
    yield from _check_keys(evidence, sessions)
    yield from _check_cascades(evidence)
    yield from _check_states(evidence)


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


class LastEvent(NamedTuple):
    """The last event of an object."""

    state: str | None
    pos: int
    at: Millis
    attempt: int | None


def _check_states(evidence: Evidence) -> Iterator[Violation]:
    last_events: dict[str, dict[Ref, LastEvent]] = {noun.name: {} for noun in NOUNS}
    for noun, event, data in noun_events(evidence, *NOUNS):
        _, state = noun.transition(event, None)
        last_events[noun.name][event.zone_id, event.subject] = LastEvent(state, event.pos, event.at, data.attempt)
    for noun in NOUNS:
        yield from _check_rows(evidence, noun, last_events[noun.name])


def _check_rows(evidence: Evidence, noun: Noun, last_events: dict[Ref, LastEvent]) -> Iterator[Violation]:
    existing: set[Ref] = set()
    for zone_id, subject, state, attempt in noun.row_states(evidence.rows):
        existing.add(ref := (zone_id, subject))
        if (last := last_events.get(ref)) is None:
            if evidence.is_log_complete:
                yield _violation(*ref, f"{noun.name} {subject} has a row, but no creation event")
        elif last.state != state:
            detail = f"{noun.name} {subject} is {state}, but {last.state} in the event log"
            yield Violation(NAME, *ref, detail, last.pos)
        elif attempt is not None and last.attempt != attempt:
            detail = f"{noun.name} {subject} is in attempt {attempt}, but its last event has attempt {last.attempt}"
            yield Violation(NAME, *ref, detail, last.pos)
    for ref, last in last_events.items():
        if ref not in existing and (last.state in noun.open_states or not _is_old(last.at, evidence)):
            detail = f"{noun.name} {ref[1]} is {last.state} in the event log, but has no row"
            yield Violation(NAME, *ref, detail, last.pos)


def _is_old(ended_at: Millis | None, evidence: Evidence) -> bool:
    return ended_at is not None and ended_at < evidence.rows.now - DAY


def _violation(zone_id: str, subject: str, detail: str) -> Violation:
    return Violation(NAME, zone_id, subject, detail)
