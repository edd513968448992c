"""A task began only after those it depends on: each of them was COMPLETED, or had failed for good if the task was told
to run without them; and if it had to wait for them, the log tells that it need not any more.

What a task depends on is known by its row, which has what was last said. It may be said anew only before the task has
begun; what began before that is not judged by what was said after.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.model import Evidence, Finding, Ref
from quarterdeck.maintenance.history_checker.task_replay import Tales, begins

NAME = "dependencies"


class Waits:
    """What each task depends on, and whether it goes on without what fails."""

    def __init__(self, evidence: Evidence) -> None:
        self._is_whole = evidence.whole
        self.ahead: dict[Ref, list[str]] = {}
        for row in evidence.rows.dependencies:
            self.ahead.setdefault((row.zone_id, row.task_id), []).append(row.depends_on)
        self._runs = {
            (row.zone_id, row.id)
            for row in evidence.rows.tasks
            if row.on_dependency_failure == "run" and (row.zone_id, row.id) in self.ahead
        }

    def unmet(self, ref: Ref, tales: Tales) -> str | None:
        """One that it must wait for, as far as the log has come. If the log's beginning is gone, one that it has not
        told of may be older than what is left."""
        for name in self.ahead.get(ref, ()):
            tale = tales.get((ref[0], name))
            if tale is None and self._is_whole:
                return name
            if tale is not None and not (tale.done or (tale.final and ref in self._runs)):
                return name
        return None


def judge(evidence: Evidence) -> Iterator[Finding]:
    waits, tales = Waits(evidence), Tales(evidence)
    found: dict[Ref, list[Finding]] = {}
    blocked: set[Ref] = set()
    for event, _, _ in tales.walk():
        ref = (event.zone_id, event.subject)
        if ref not in waits.ahead:
            continue
        if event.type == "task.changed":
            # What it depends on may be another since.
            found.pop(ref, None)
            blocked.discard(ref)
        elif event.type == "task.unblocked":
            blocked.discard(ref)
        elif event.type in ("task.created", "task.requeued"):
            # By hand a task is begun anew, and waits anew for what was begun anew as well.
            (blocked.discard if waits.unmet(ref, tales) is None else blocked.add)(ref)
        elif begins(event):
            if (name := waits.unmet(ref, tales)) is not None:
                detail = f"the task {ref[1]} began before {name}, on which it depends, was over"
            elif ref in blocked:
                detail = f"the task {ref[1]} began, and the log never told that it waits no more"
            else:
                continue
            found.setdefault(ref, []).append(Finding(NAME, *ref, detail, event.pos))
    for findings in found.values():
        yield from findings
