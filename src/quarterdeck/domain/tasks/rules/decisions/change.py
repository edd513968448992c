"""Changes by users: cancel, retry, pause, resume, patch and archive."""

from __future__ import annotations

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Archive, Cancel, Patch, Pause, Resume, Retry
from quarterdeck.domain.tasks.model.rows import ContentUpdate, State, Task, Verb
from quarterdeck.domain.tasks.rules import errors, states
from quarterdeck.domain.tasks.rules.batch import Batch


def cancel(batch: Batch, command: Cancel, task: Task) -> Task | Problem:
    if states.has_ended(task):
        return task if task.status is State.ABORTED else errors.state_conflict(task, "canceled", f"it is {task.status}")
    after = states.cancel(task, command.reason, batch.now)
    batch.agents.free_slot(task)
    # Dependents are not failed here: there may be thousands. The coordinator fails them in bounded batches.
    batch.transition(task, after, Verb.CANCEL, command, {"reason": command.reason})
    return after


def retry(batch: Batch, command: Retry, task: Task) -> Task | Problem:
    """Queue the task again. It waits for any of its dependencies that were retried too and have not completed."""
    if not states.is_allowed(Verb.REQUEUE, task):
        return errors.state_conflict(task, "retried", f"it is {task.status}")
    check = batch.dependencies.check_retry(task.ref)
    if isinstance(check, Problem):
        return check
    if check.failed is not None and task.on_dependency_failure == "fail":
        reason = f"its dependency {check.failed!r} has failed; retry that task first"
        return errors.state_conflict(task, "retried", reason)
    batch.dependencies.reopen(task.ref, check.unmet)
    after = states.retry(task, len(check.unmet), batch.now)
    batch.transition(task, after, Verb.REQUEUE, command, {"reason": "retry"})
    batch.queues.push_if_ready(after)
    return after


def pause(batch: Batch, command: Pause | Patch, task: Task) -> Task | Problem:
    if task.status is State.PAUSED:
        return task
    if not states.is_allowed(Verb.PAUSE, task):
        return errors.state_conflict(task, "paused", f"it is {task.status}")
    batch.agents.free_slot(task)
    after = states.pause(task, batch.now)
    batch.transition(task, after, Verb.PAUSE, command)
    return after


def resume(batch: Batch, command: Resume | Patch, task: Task) -> Task | Problem:
    if task.status is State.PENDING:
        return task
    if not states.is_allowed(Verb.RESUME, task):
        return errors.state_conflict(task, "resumed", f"it is {task.status}")
    after = states.resume(task, batch.now)
    batch.transition(task, after, Verb.RESUME, command)
    batch.queues.push_if_ready(after)
    return after


def archive(batch: Batch, command: Archive, task: Task) -> Task | Problem:
    if task.status is State.ARCHIVED:
        return task
    if not states.has_ended(task):
        return errors.state_conflict(task, "archived", f"it is {task.status} and has not ended")
    after = states.archive(task, batch.now)
    batch.transition(task, after, Verb.ARCHIVE, command)
    return after


def patch(batch: Batch, command: Patch, task: Task) -> Task | Problem:
    # Check the state first: either all changes are made, or none.
    verb = {"pause": Verb.PAUSE, "resume": Verb.RESUME}.get(command.status_change or "")
    target_state = State.PAUSED if verb is Verb.PAUSE else State.PENDING
    if verb and task.status is not target_state and not states.is_allowed(verb, task):
        return errors.state_conflict(task, f"{verb}d", f"it is {task.status}")
    after = _change_fields(batch, command, task) if command.has_field_changes else task
    if verb is None or isinstance(after, Problem):
        return after
    return pause(batch, command, after) if verb is Verb.PAUSE else resume(batch, command, after)


def _change_fields(batch: Batch, command: Patch, task: Task) -> Task | Problem:
    if task.status is State.ARCHIVED:
        return errors.state_conflict(task, "changed", "it is ARCHIVED")
    after = states.apply_patch(task, command, batch.loaded.timeouts.overdue_ms, batch.now)
    if command.depends_on is not None:
        changed = _replace_dependencies(batch, command.depends_on, after)
        if isinstance(changed, Problem):
            return changed
        after = changed
    if command.metadata is not None or command.tags is not None:
        batch.content.update(task.ref, ContentUpdate(metadata_json=command.metadata, tags=command.tags_json))
    if command.tags is not None:
        batch.content.replace_tags(task.ref, command.tags)
    batch.update(after)
    batch.tasks.emit("task.changed", task.status, after, command)
    batch.queues.push_if_ready(after)
    return after


def _replace_dependencies(batch: Batch, depends_on: tuple[str, ...], task: Task) -> Task | Problem:
    if task.status not in (State.PENDING, State.PAUSED) or task.attempt:
        return errors.already_started(task.id)
    check = batch.dependencies.check(task.zone_id, depends_on)
    if isinstance(check, Problem):
        return check
    if cycle := batch.dependencies.find_cycle(task.ref, depends_on):
        return errors.dependency_cycle(cycle)
    if check.failed is not None and task.on_dependency_failure == "fail":
        return errors.failed_dependency(check.failed)
    batch.dependencies.put(task.ref, depends_on, check.unmet)
    return states.set_dependencies(task, len(depends_on), len(check.unmet), batch.now)
