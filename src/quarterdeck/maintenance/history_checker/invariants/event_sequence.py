"""The log tells one story: every session begins once and ends once, children before their parents, each state follows
from the one before, every step of a task is told once, and positions have no gap.

The other promises are read from the log; this one is about whether it can be read.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence, Finding, told_by
from quarterdeck.maintenance.history_checker.replay import Lives
from quarterdeck.maintenance.history_checker.task_model import TaskTold, task_told_by
from quarterdeck.maintenance.history_checker.task_replay import ARROWS, PREFIX, UNBEGUN, Tales, TaskTale, begins

NAME = "story"
SESSION = ("session.spawn", "session.suspend", "session.resume", "session.terminate")


def judge(evidence: Evidence) -> Iterator[Finding]:
    lives = Lives(evidence)
    states: dict[tuple[str, str], str | None] = {}
    before: Event | None = None
    for event in evidence.log:
        if before is not None and event.pos != before.pos + 1:
            yield _wrong(event, f"it follows position {before.pos}")
        before = event
        told = told_by(event)
        if told is None:
            yield _wrong(event, f"the data of {event.type} cannot be read")
            continue
        if event.type in SESSION:
            yield from _session(evidence, event, lives, states)
        lives.feed(event, told)
    for wrong, detail in _check_tasks(evidence):
        yield _wrong(wrong, detail)


def _session(
    evidence: Evidence, event: Event, lives: Lives, states: dict[tuple[str, str], str | None]
) -> Iterator[Finding]:
    ref = (event.zone_id, event.subject)
    life = lives.get(*ref)
    if event.type == "session.spawn":
        if life is not None and life.spawned_pos:
            yield _wrong(event, f"the session {event.subject} had begun at {life.spawned_pos}")
    elif life is None:
        if evidence.whole:
            yield _wrong(event, f"{event.type} of {event.subject}, which never began")
    elif event.type == "session.terminate":
        if life.settled_pos is not None:
            yield _wrong(event, f"the session {event.subject} had ended at {life.settled_pos}")
        left = [child.id for child in lives.children(life) if child.ended_pos is None or not child.settled_pos]
        if left:
            yield _wrong(event, f"the session {event.subject} ended before its child {left[0]}")
    if ref in states and states[ref] != event.from_state:
        yield _wrong(event, f"{event.subject} came from {event.from_state}, and was {states[ref]}")
    states[ref] = event.to_state


def _wrong(event: Event, detail: str) -> Finding:
    return Finding(NAME, event.zone_id, event.subject, detail, event.pos)


Wrong = tuple[Event, str]
BY_HAND = "retry"


def _check_tasks(evidence: Evidence) -> Iterator[Wrong]:
    yield from _unreadable_tasks(evidence)
    for event, told, tale in Tales(evidence).walk():
        if begins(event) and tale.is_held:
            continue
        if (detail := _task_problem(event, told, tale)) is not None:
            yield event, detail


def _unreadable_tasks(evidence: Evidence) -> Iterator[Wrong]:
    for event in evidence.log:
        if event.type.startswith(PREFIX) and task_told_by(event) is None:
            yield event, f"the data of {event.type} cannot be read"


def _task_problem(event: Event, told: TaskTold, tale: TaskTale) -> str | None:
    name, verb = event.subject, event.type.removeprefix(PREFIX)
    if event.type not in ARROWS:
        return f"{event.type} of {name} is no step of a task"
    if event.from_state != tale.state:
        return f"the task {name} was {verb} from {event.from_state}, and was {tale.state or 'not there'}"
    if (event.from_state, event.to_state) not in ARROWS[event.type]:
        return f"the task {name} was {verb}, which does not lead from {event.from_state} to {event.to_state}"
    if event.type == "task.failed" and not tale.is_held and told.reason not in UNBEGUN:
        return f"the task {name} failed ({told.reason}), and nobody had it"
    if event.type == "task.requeued" and tale.final and told.reason != BY_HAND:
        return f"the task {name} was over for good, and went back by itself ({told.reason})"
    if event.type == "task.progressed" and (told.progress_percent, told.current_step) == tale.said:
        return f"the progress of {name} was told twice"
    return None
