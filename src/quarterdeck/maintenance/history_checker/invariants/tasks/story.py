"""Every step of a task stands in the log exactly once, and is an arrow of its machine: it leads from the state to which
the step before it led, to one that such a step may lead to.

An attempt that begins while another is under way is for `one-holder` to tell.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence
from quarterdeck.maintenance.history_checker.task_model import TaskTold, task_told_by
from quarterdeck.maintenance.history_checker.task_replay import ARROWS, PREFIX, UNBEGUN, Tales, TaskTale, begins

Wrong = tuple[Event, str]
BY_HAND = "retry"


def judge(evidence: Evidence) -> Iterator[Wrong]:
    yield from _unreadable(evidence)
    for event, told, tale in Tales(evidence).walk():
        if begins(event) and tale.is_held:
            continue
        if (detail := _wrong(event, told, tale)) is not None:
            yield event, detail


def _unreadable(evidence: Evidence) -> Iterator[Wrong]:
    for event in evidence.log:
        if event.type.startswith(PREFIX) and task_told_by(event) is None:
            yield event, f"the data of {event.type} cannot be read"


def _wrong(event: Event, told: TaskTold, tale: TaskTale) -> str | None:
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
