"""The events form a valid sequence.

Every session is spawned once and terminated at most once, after its children. Each event starts from the state in which
the previous one ended. The same progress of a task is not recorded twice in a row. Positions have no gaps. The other
invariants rely on this.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence, Violation, decode_event_data
from quarterdeck.maintenance.history_checker.replay import SessionReplay
from quarterdeck.maintenance.history_checker.task_model import TaskEventData, decode_task_event_data
from quarterdeck.maintenance.history_checker.task_replay import (
    TASK_PREFIX,
    TRANSITIONS,
    UNSTARTED_FAILURE_REASONS,
    ReplayedTask,
    TaskReplay,
    starts_attempt,
)

NAME = "story"
SESSION_EVENTS = ("session.spawn", "session.suspend", "session.resume", "session.terminate")


def check(evidence: Evidence) -> Iterator[Violation]:
    sessions = SessionReplay(evidence)
    states: dict[tuple[str, str], str | None] = {}
    previous: Event | None = None
    for event in evidence.log:
        if previous is not None and event.pos != previous.pos + 1:
            yield _violation(event, f"the previous event is at position {previous.pos}")
        previous = event
        data = decode_event_data(event)
        if data is None:
            yield _violation(event, f"the data of {event.type} is malformed")
            continue
        if event.type in SESSION_EVENTS:
            yield from _check_session(evidence, event, sessions, states)
        sessions.apply(event, data)
    for task_event, detail in _check_tasks(evidence):
        yield _violation(task_event, detail)


def _check_session(
    evidence: Evidence, event: Event, sessions: SessionReplay, states: dict[tuple[str, str], str | None]
) -> Iterator[Violation]:
    ref = (event.zone_id, event.subject)
    session = sessions.get(*ref)
    if event.type == "session.spawn":
        if session is not None and session.spawned_pos:
            yield _violation(event, f"session {event.subject} was already spawned at {session.spawned_pos}")
    elif session is None:
        if evidence.is_log_complete:
            yield _violation(event, f"{event.type} of {event.subject}, which was never spawned")
    elif event.type == "session.terminate":
        if session.terminated_pos is not None:
            yield _violation(event, f"session {event.subject} was already terminated at {session.terminated_pos}")
        open_children = [
            child.id for child in sessions.children(session) if child.ended_pos is None or not child.terminated_pos
        ]
        if open_children:
            yield _violation(event, f"session {event.subject} ended before its child {open_children[0]}")
    if ref in states and states[ref] != event.from_state:
        yield _violation(event, f"the event has from_state {event.from_state}, but {event.subject} was {states[ref]}")
    states[ref] = event.to_state


def _violation(event: Event, detail: str) -> Violation:
    return Violation(NAME, event.zone_id, event.subject, detail, event.pos)


EventDetail = tuple[Event, str]
"""(event, what is wrong with it)"""
MANUAL_RETRY = "retry"
"""The `reason` of a `task.requeued` event that a client's retry caused."""


def _check_tasks(evidence: Evidence) -> Iterator[EventDetail]:
    yield from _malformed_task_events(evidence)
    for event, data, task in TaskReplay(evidence).walk():
        if starts_attempt(event) and task.is_held:
            # The invariant `one-holder` reports this.
            continue
        if (detail := _violation_detail(event, data, task)) is not None:
            yield event, detail


def _malformed_task_events(evidence: Evidence) -> Iterator[EventDetail]:
    for event in evidence.log:
        if event.type.startswith(TASK_PREFIX) and decode_task_event_data(event) is None:
            yield event, f"the data of {event.type} is malformed"


def _violation_detail(event: Event, data: TaskEventData, task: ReplayedTask) -> str | None:
    task_id, verb = event.subject, event.type.removeprefix(TASK_PREFIX)
    if event.type not in TRANSITIONS:
        return f"{event.type} of {task_id} is not a known task event"
    if event.from_state != task.state:
        return f"task {task_id} was {verb} from {event.from_state}, but its state was {task.state or 'unknown'}"
    if (event.from_state, event.to_state) not in TRANSITIONS[event.type]:
        return f"task {task_id} was {verb}, which does not lead from {event.from_state} to {event.to_state}"
    if event.type == "task.failed" and not task.is_held and data.reason not in UNSTARTED_FAILURE_REASONS:
        return f"task {task_id} failed ({data.reason}), but no agent held it"
    if event.type == "task.requeued" and task.is_final and data.reason != MANUAL_RETRY:
        return f"task {task_id} had ended permanently, but was requeued ({data.reason})"
    if event.type == "task.progressed" and (data.progress_percent, data.current_step) == task.last_progress:
        return f"the progress of {task_id} was recorded twice"
    return None
