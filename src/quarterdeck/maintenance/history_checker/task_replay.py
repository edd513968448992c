"""Replays the event log: the states of each task, and when its attempts started and ended.

Like `replay`, it implements the documentation and does not use the component's own rules. A test compares
`TRANSITIONS` with the component's state machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence, Ref
from quarterdeck.maintenance.history_checker.task_model import TaskEventData, decode_task_event_data

TASK_PREFIX = "task."
HELD_STATES = frozenset({"ASSIGNED", "RUNNING"})
"""The states in which an agent holds the task."""
ACTIVE_STATES = ("PENDING", "ASSIGNED", "RUNNING")
"""The states of a task that is neither paused nor ended."""
Transition = tuple[str | None, str | None]
"""(from, to)"""


def _unchanged(*states: str) -> frozenset[Transition]:
    return frozenset((state, state) for state in states)


def _to_state(target: str, *states: str) -> frozenset[Transition]:
    return frozenset((state, target) for state in states)


TRANSITIONS: Mapping[str, frozenset[Transition]] = {
    # A task whose dependency has already failed is created as FAILED.
    "task.created": frozenset({(None, "PENDING"), (None, "FAILED")}),
    "task.assigned": _to_state("ASSIGNED", "PENDING"),
    "task.started": _to_state("RUNNING", "PENDING", "ASSIGNED"),
    "task.progressed": _unchanged(*HELD_STATES),
    "task.paused": _to_state("PAUSED", *ACTIVE_STATES),
    "task.resumed": _to_state("PENDING", "PAUSED"),
    "task.completed": _to_state("COMPLETED", *HELD_STATES, "PAUSED"),
    "task.failed": _to_state("FAILED", *ACTIVE_STATES, "PAUSED"),
    "task.aborted": _to_state("ABORTED", *ACTIVE_STATES, "PAUSED", "FAILED", "ABORTED"),
    "task.requeued": _to_state("PENDING", "FAILED", "ABORTED"),
    "task.released": _to_state("PENDING", *HELD_STATES),
    "task.archived": _to_state("ARCHIVED", "COMPLETED", "FAILED", "ABORTED"),
    "task.changed": _unchanged(*ACTIVE_STATES, "PAUSED", "COMPLETED", "FAILED", "ABORTED"),
    "task.warned": _unchanged("RUNNING"),
    "task.unblocked": _unchanged("PENDING", "PAUSED"),
}
"""The transitions that each event may record."""
UNSTARTED_FAILURE_REASONS = frozenset({"dependency_failed", "dependency_cycle"})
"""The reasons for which a task can fail while no agent holds it."""


@dataclass(slots=True)
class ReplayedTask:
    """One task at the current position of the replay."""

    state: str | None = None
    attempt: int = 0
    """The number of the running attempt, or of the last counted one."""
    is_final: bool = False
    """It failed or was aborted, and will not be retried automatically."""
    is_completed: bool = False
    """It was COMPLETED, and may have been archived since."""
    last_progress: tuple[int | None, str | None] | None = None
    """The last reported progress of the running attempt."""

    @property
    def is_held(self) -> bool:
        return self.state in HELD_STATES

    def apply(self, event: Event, data: TaskEventData) -> None:
        if starts_attempt(event):
            self.attempt, self.last_progress = data.attempt, None
        elif event.type == "task.released":
            # A released attempt is not counted: the next attempt gets the same number.
            self.attempt = max(0, self.attempt - 1)
        elif event.type == "task.progressed":
            self.last_progress = (data.progress_percent, data.current_step)
        self.state = event.to_state
        self.is_completed = self.is_completed or event.type == "task.completed"
        if self.state in ("FAILED", "ABORTED"):
            self.is_final = data.final
        elif self.state != "ARCHIVED":
            self.is_final = False


def starts_attempt(event: Event) -> bool:
    """Whether the event starts an attempt. The attempt of an assigned task starts with the assignment."""
    return event.type == "task.assigned" or (event.type == "task.started" and event.from_state != "ASSIGNED")


def ends_attempt(event: Event) -> bool:
    return event.from_state in HELD_STATES and event.to_state not in HELD_STATES


class TaskReplay:
    """All tasks up to the current position of the replay."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._tasks: dict[Ref, ReplayedTask] = {}

    def get(self, ref: Ref) -> ReplayedTask | None:
        return self._tasks.get(ref)

    def walk(self) -> Iterator[tuple[Event, TaskEventData, ReplayedTask]]:
        """Yield each task event with valid data, and the task in its state before the event."""
        for event in self._evidence.log:
            if not event.type.startswith(TASK_PREFIX):
                continue
            data = decode_task_event_data(event)
            if data is None:
                continue
            ref = (event.zone_id, event.subject)
            task = self._tasks.get(ref)
            if task is None:
                task = self._tasks[ref] = self._initial_task(event, data)
            yield event, data, task
            task.apply(event, data)

    def _initial_task(self, event: Event, data: TaskEventData) -> ReplayedTask:
        if self._evidence.is_log_complete or event.from_state is None:
            return ReplayedTask()
        # Derive the state before the task's oldest stored event from that event.
        attempt = data.attempt
        if starts_attempt(event):
            attempt -= 1
        elif event.type == "task.released":
            attempt += 1
        return ReplayedTask(event.from_state, attempt, is_completed=event.from_state == "COMPLETED")
