"""A task began only after those it depends on: each of them was COMPLETED, or had failed for good if the task was told
to run without them; and if it had to wait for them, the log tells that it need not any more.

What a task depends on is known by its row, which has what was last said. It may be said anew only before the task has
begun; what began before that is not judged by what was said after.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.model import Evidence, Ref, Violation
from quarterdeck.maintenance.history_checker.task_replay import TaskReplay, starts_attempt

NAME = "dependencies"


class DependencyTracker:
    """What each task depends on, and whether it goes on without what fails."""

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

    def first_unmet(self, ref: Ref, replay: TaskReplay) -> str | None:
        """One that it must wait for, as far as the log has come. If the log's beginning is gone, one that it has not
        told of may be older than what is left."""
        for name in self.dependencies.get(ref, ()):
            task = replay.get((ref[0], name))
            if task is None and self._is_log_complete:
                return name
            if task is not None and not (task.is_completed or (task.is_final and ref in self._runs_after_failure)):
                return name
        return None


def check(evidence: Evidence) -> Iterator[Violation]:
    tracker, replay = DependencyTracker(evidence), TaskReplay(evidence)
    violations_by_task: dict[Ref, list[Violation]] = {}
    blocked: set[Ref] = set()
    for event, _, _ in replay.walk():
        ref = (event.zone_id, event.subject)
        if ref not in tracker.dependencies:
            continue
        if event.type == "task.changed":
            # What it depends on may be another since.
            violations_by_task.pop(ref, None)
            blocked.discard(ref)
        elif event.type == "task.unblocked":
            blocked.discard(ref)
        elif event.type in ("task.created", "task.requeued"):
            # By hand a task is begun anew, and waits anew for what was begun anew as well.
            (blocked.discard if tracker.first_unmet(ref, replay) is None else blocked.add)(ref)
        elif starts_attempt(event):
            if (name := tracker.first_unmet(ref, replay)) is not None:
                detail = f"the task {ref[1]} began before {name}, on which it depends, was over"
            elif ref in blocked:
                detail = f"the task {ref[1]} began, and the log never told that it waits no more"
            else:
                continue
            violations_by_task.setdefault(ref, []).append(Violation(NAME, *ref, detail, event.pos))
    for violations in violations_by_task.values():
        yield from violations
