"""A task starts only after its dependencies.

Each dependency was COMPLETED or, if the task runs after failures (`on_dependency_failure`), had failed permanently. If
the task had to wait, the event log has a `task.unblocked` event.

The rows show the current dependencies of a task. Any change to a task may have changed them, so starts before its last
change are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.core.ids import Ref
from quarterdeck.maintenance.history_checker.model import Evidence, Violation
from quarterdeck.maintenance.history_checker.nouns import TASK
from quarterdeck.maintenance.history_checker.replay import Replay

NAME = "dependencies"


class TaskDependencies:
    """The dependencies of each task, and whether it runs after a dependency has failed."""

    def __init__(self, evidence: Evidence) -> None:
        self._is_log_complete = evidence.is_log_complete
        self.dependencies: dict[Ref, list[str]] = {}
        for row in evidence.rows.dependencies:
            self.dependencies.setdefault((row.zone_id, row.task_id), []).append(row.depends_on)
        self._runs_after_failure = {
            (row.zone_id, row.id)
            for row in evidence.rows.tasks
            if row.on_dependency_failure == "run" and (row.zone_id, row.id) in self.dependencies
        }

    def first_unmet(self, ref: Ref, replay: Replay) -> str | None:
        """The first unmet dependency at the current position, or None.

        If the beginning of the event log was deleted, a dependency without events may have ended before the oldest
        stored event. It counts as met.
        """
        for dependency_id in self.dependencies.get(ref, ()):
            task = replay.get(TASK, (ref[0], dependency_id))
            if task is None and self._is_log_complete:
                return dependency_id
            if task is not None and not (task.is_completed or (task.is_final and ref in self._runs_after_failure)):
                return dependency_id
        return None


def check(evidence: Evidence) -> Iterator[Violation]:
    task_dependencies, replay = TaskDependencies(evidence), Replay(evidence, TASK)
    violations_by_task: dict[Ref, list[Violation]] = {}
    blocked_tasks: set[Ref] = set()
    for event, _, _ in replay.walk():
        ref = (event.zone_id, event.subject)
        if ref not in task_dependencies.dependencies:
            continue
        if event.type == "task.changed":
            # The task's dependencies may have changed.
            violations_by_task.pop(ref, None)
            blocked_tasks.discard(ref)
        elif event.type == "task.unblocked":
            blocked_tasks.discard(ref)
        elif event.type in ("task.created", "task.requeued"):
            # A manual retry waits again for dependencies that were retried as well.
            (blocked_tasks.discard if task_dependencies.first_unmet(ref, replay) is None else blocked_tasks.add)(ref)
        elif TASK.starts_attempt(event):
            if (dependency_id := task_dependencies.first_unmet(ref, replay)) is not None:
                detail = f"task {ref[1]} started before its dependency {dependency_id} had ended"
            elif ref in blocked_tasks:
                detail = f"task {ref[1]} started without a task.unblocked event"
            else:
                continue
            violations_by_task.setdefault(ref, []).append(Violation(NAME, *ref, detail, event.pos))
    for violations in violations_by_task.values():
        yield from violations
