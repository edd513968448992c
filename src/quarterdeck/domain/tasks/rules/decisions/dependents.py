"""How the end of a task affects the tasks that wait for it."""

from __future__ import annotations

from quarterdeck.core.command import Command
from quarterdeck.domain.tasks.model.rows import ContentUpdate, State, Task, Verb
from quarterdeck.domain.tasks.rules import states
from quarterdeck.domain.tasks.rules.batch import Batch


def unblock(batch: Batch, ended: Task, command: Command) -> Task:
    """Unblock or fail the loaded dependents of an ended task. If more exist, mark the task for the coordinator."""
    for waiting in batch.dependencies.meet(ended):
        if waiting.status not in (State.PENDING, State.PAUSED):
            continue
        if ended.final and waiting.on_dependency_failure == "fail":
            fail_for_dependency(batch, waiting, ended.id, command)
        else:
            _meet_dependency(batch, waiting, command)
    truncated = batch.loaded.dependents_truncated
    if bool(ended.dependents_pending) != truncated:
        ended = states.set_dependents_pending(ended, pending=truncated)
        batch.update(ended)
    return ended


def fail_for_dependency(batch: Batch, task: Task, failed_id: str, command: Command) -> Task:
    error = f"It depends on {failed_id!r}, which has failed or was canceled."
    batch.content.update(task.ref, ContentUpdate(last_error=error))
    after = states.fail_dependency(task, states.DEPENDENCY_FAILED, batch.now)
    batch.transition(task, after, Verb.FAIL_DEPENDENCY, command, {"reason": after.reason})
    return after


def _meet_dependency(batch: Batch, waiting: Task, command: Command) -> None:
    after = states.meet_dependency(waiting, batch.now)
    batch.update(after)
    if after.unmet_dependencies == 0 and waiting.unmet_dependencies > 0:
        batch.tasks.emit("task.unblocked", waiting.status, after, command)
    batch.queues.push_if_ready(after)
