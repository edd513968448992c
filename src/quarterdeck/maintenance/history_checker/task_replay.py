"""The log told again: how each task went from state to state, and whose attempts at it began and ended when.

Written from the contract and not with the room's own rules, like `replay`; that the two agree is a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence, Ref
from quarterdeck.maintenance.history_checker.task_model import TaskTold, task_told_by

PREFIX = "task."
HELD = frozenset({"ASSIGNED", "RUNNING"})
"""An agent has it."""
OPEN = ("PENDING", "ASSIGNED", "RUNNING")
Arrow = tuple[str | None, str | None]


def _stays(*states: str) -> frozenset[Arrow]:
    return frozenset((state, state) for state in states)


def _leads(to: str, *states: str) -> frozenset[Arrow]:
    return frozenset((state, to) for state in states)


ARROWS: Mapping[str, frozenset[Arrow]] = {
    # Made when what it depends on has failed already, it has failed by that.
    "task.created": frozenset({(None, "PENDING"), (None, "FAILED")}),
    "task.assigned": _leads("ASSIGNED", "PENDING"),
    "task.started": _leads("RUNNING", "PENDING", "ASSIGNED"),
    "task.progressed": _stays(*HELD),
    "task.paused": _leads("PAUSED", *OPEN),
    "task.resumed": _leads("PENDING", "PAUSED"),
    "task.completed": _leads("COMPLETED", *HELD, "PAUSED"),
    "task.failed": _leads("FAILED", *OPEN, "PAUSED"),
    "task.aborted": _leads("ABORTED", *OPEN, "PAUSED", "FAILED", "ABORTED"),
    "task.requeued": _leads("PENDING", "FAILED", "ABORTED"),
    "task.released": _leads("PENDING", *HELD),
    "task.archived": _leads("ARCHIVED", "COMPLETED", "FAILED", "ABORTED"),
    "task.changed": _stays(*OPEN, "PAUSED", "COMPLETED", "FAILED", "ABORTED"),
    "task.warned": _stays("RUNNING"),
    "task.unblocked": _stays("PENDING", "PAUSED"),
}
"""What each event may lead from and to."""
UNBEGUN = frozenset({"dependency_failed", "dependency_cycle"})
"""Why a task fails that nobody has."""


@dataclass(slots=True)
class TaskTale:
    """One task, as far as the log has come."""

    state: str | None = None
    attempt: int = 0
    """The last that was begun and counted, or is under way."""
    final: bool = False
    """It failed, or was aborted, for good."""
    done: bool = False
    """It was COMPLETED, and may have been put away since."""
    said: tuple[int | None, str | None] | None = None
    """What was last told of the progress of the attempt under way."""

    @property
    def is_held(self) -> bool:
        return self.state in HELD

    def take(self, event: Event, told: TaskTold) -> None:
        if begins(event):
            self.attempt, self.said = told.attempt, None
        elif event.type == "task.released":
            # Given back uncounted: the next is begun under the same number.
            self.attempt = max(0, self.attempt - 1)
        elif event.type == "task.progressed":
            self.said = (told.progress_percent, told.current_step)
        self.state = event.to_state
        self.done = self.done or event.type == "task.completed"
        if self.state in ("FAILED", "ABORTED"):
            self.final = told.final
        elif self.state != "ARCHIVED":
            self.final = False


def begins(event: Event) -> bool:
    """Whether an attempt begins by it: one that was assigned is under way when it is started."""
    return event.type == "task.assigned" or (event.type == "task.started" and event.from_state != "ASSIGNED")


def ends(event: Event) -> bool:
    """Whether an attempt ends by it."""
    return event.from_state in HELD and event.to_state not in HELD


class Tales:
    """Every task the log has told of so far."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._tales: dict[Ref, TaskTale] = {}

    def get(self, ref: Ref) -> TaskTale | None:
        return self._tales.get(ref)

    def walk(self) -> Iterator[tuple[Event, TaskTold, TaskTale]]:
        """Each event of a task that can be read, with the task as it was before it."""
        for event in self._evidence.log:
            if not event.type.startswith(PREFIX):
                continue
            told = task_told_by(event)
            if told is None:
                continue
            ref = (event.zone_id, event.subject)
            tale = self._tales.get(ref)
            if tale is None:
                tale = self._tales[ref] = self._first(event, told)
            yield event, told, tale
            tale.take(event, told)

    def _first(self, event: Event, told: TaskTold) -> TaskTale:
        if self._evidence.whole or event.from_state is None:
            return TaskTale()
        # What it was before the first event that is left, that event says.
        number = told.attempt
        if begins(event):
            number -= 1
        elif event.type == "task.released":
            number += 1
        return TaskTale(event.from_state, number, done=event.from_state == "COMPLETED")
