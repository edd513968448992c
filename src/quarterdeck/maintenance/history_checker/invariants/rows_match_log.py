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
from quarterdeck.maintenance.history_checker.model import TERMINATED, Evidence, Finding, Ref
from quarterdeck.maintenance.history_checker.replay import LEADS_TO, Lives, lived, reading
from quarterdeck.maintenance.history_checker.task_model import TaskTold
from quarterdeck.maintenance.history_checker.task_replay import Tales

NAME = "agreement"
EDGES = {"delegation.create": "active", "delegation.revoke": "revoked", "delegation.expire": "expired"}


def judge(evidence: Evidence) -> Iterator[Finding]:
    lives = lived(evidence)
    yield from _sessions(evidence, lives)
    yield from _keys(evidence, lives)
    yield from _cascades(evidence)
    yield from _states(evidence, LEADS_TO, "invocation", _invocations(evidence))
    yield from _states(evidence, EDGES, "delegation", _edges(evidence))
    yield from _check_tasks(evidence, NAME)


def _sessions(evidence: Evidence, lives: Lives) -> Iterator[Finding]:
    there: set[Ref] = set()
    for row in evidence.rows.sessions:
        there.add((row.zone_id, row.id))
        life = lives.get(row.zone_id, row.id)
        if life is None:
            if evidence.whole:
                yield _found(row.zone_id, row.id, f"the session {row.id} is there, and the log never let it begin")
        elif (row.terminated_at is None) != (life.ended_pos is None):
            told = "goes on" if life.ended_pos is None else f"ended at {life.ended_pos}"
            yield _found(row.zone_id, row.id, f"the session {row.id} is {row.status}, and by the log it {told}")
        elif (row.status == TERMINATED) != (life.settled_pos is not None or life.ended_pos == 0):
            yield _found(row.zone_id, row.id, f"the session {row.id} is {row.status}, and the log says otherwise")
        elif row.status != TERMINATED and (row.status == "suspended") != life.asleep and life.spawned_pos:
            told = "asleep" if life.asleep else "awake"
            yield _found(row.zone_id, row.id, f"the session {row.id} is {row.status}, and by the log {told}")
    for life in lives:
        if (life.zone_id, life.id) not in there and not _is_old(life.settled_at, evidence):
            detail = f"the session {life.id} began at {life.spawned_pos}, and is not there"
            yield Finding(NAME, life.zone_id, life.id, detail, life.spawned_pos)


def _keys(evidence: Evidence, lives: Lives) -> Iterator[Finding]:
    for row in evidence.rows.keys:
        if evidence.whole and lives.get(row.zone_id, row.subject_id) is None:
            detail = f"the key {row.key!r} stands for {row.subject_id}, which never began"
            yield _found(row.zone_id, row.subject_id, detail)


def _cascades(evidence: Evidence) -> Iterator[Finding]:
    begun = {(event.zone_id, told.cascade_id) for event, told in reading(evidence) if event.type == "cascade.begin"}
    for row in evidence.rows.cascades:
        if evidence.whole and (row.zone_id, row.id) not in begun:
            subject = row.target_id or row.zone_id
            yield _found(row.zone_id, subject, f"the cascade {row.id} of {subject} is there, and never began")


State = tuple[Ref, str]


def _invocations(evidence: Evidence) -> Iterator[State]:
    return (((row.zone_id, row.id), row.status) for row in evidence.rows.invocations)


def _edges(evidence: Evidence) -> Iterator[State]:
    return (((row.zone_id, row.id), row.status) for row in evidence.rows.edges)


def _states(evidence: Evidence, leads_to: dict[str, str], noun: str, rows: Iterator[State]) -> Iterator[Finding]:
    last: dict[Ref, tuple[str, int, Millis]] = {}
    for event, _ in reading(evidence):
        if event.type in leads_to:
            last[event.zone_id, event.subject] = (leads_to[event.type], event.pos, event.at)
    there: set[Ref] = set()
    for ref, status in rows:
        there.add(ref)
        told = last.get(ref)
        if told is None:
            if evidence.whole:
                yield _found(*ref, f"the {noun} {ref[1]} is there, and the log never let it begin")
        elif told[0] != status:
            detail = f"the {noun} {ref[1]} is {status}, and was last told to be {told[0]}"
            yield Finding(NAME, *ref, detail, told[1])
    for ref, (status, pos, at) in last.items():
        if ref not in there and not (status not in ("pending", "running", "active") and _is_old(at, evidence)):
            yield Finding(NAME, *ref, f"the {noun} {ref[1]} was told to be {status}, and is not there", pos)


def _is_old(ended: Millis | None, evidence: Evidence) -> bool:
    return ended is not None and ended < evidence.rows.now - DAY


def _found(zone_id: str, subject: str, detail: str) -> Finding:
    return Finding(NAME, zone_id, subject, detail)


GOES_ON = frozenset({"PENDING", "ASSIGNED", "RUNNING", "PAUSED"})


def _check_tasks(evidence: Evidence, promise: str) -> Iterator[Finding]:
    last: dict[Ref, tuple[Event, TaskTold]] = {
        (event.zone_id, event.subject): (event, told) for event, told, _ in Tales(evidence).walk()
    }
    there: set[Ref] = set()
    for row in evidence.rows.tasks:
        ref = (row.zone_id, row.id)
        there.add(ref)
        if (known := last.get(ref)) is None:
            if evidence.whole:
                yield Finding(promise, *ref, f"the task {row.id} is there, and the log never let it begin")
            continue
        event, told = known
        if event.to_state != row.status:
            detail = f"the task {row.id} is {row.status}, and was last told to be {event.to_state}"
            yield Finding(promise, *ref, detail, event.pos)
        elif told.attempt != row.attempt:
            detail = f"the task {row.id} is in attempt {row.attempt}, and was last told to be in {told.attempt}"
            yield Finding(promise, *ref, detail, event.pos)
    for ref, (event, _) in last.items():
        is_old = event.to_state not in GOES_ON and event.at < evidence.rows.now - DAY
        if ref not in there and not is_old:
            detail = f"the task {ref[1]} was told to be {event.to_state}, and is not there"
            yield Finding(promise, *ref, detail, event.pos)
