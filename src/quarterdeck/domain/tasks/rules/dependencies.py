"""Dependencies between tasks, and how the end of a task affects its dependents.

A dependency is unmet or met. When a task completes, each dependency on it is met. A dependent without unmet
dependencies is ready, or waits for its start time. When a task fails with no retry left or is canceled, its dependents
fail too, unless their `onDependencyFailure` is `run`: then they run anyway. A batch loads only dependents whose
dependency is unmet, up to a limit. If there are more, the ended task stays marked (`dependents_pending`), and later
batches unblock the remaining dependents.
"""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import BaseCommand, FailForCycle, Patch, Retry, UnblockDependents
from quarterdeck.domain.tasks.model.rows import ContentUpdate, State, Strategy, Task, TaskRef
from quarterdeck.domain.tasks.rules import errors, ranking, states
from quarterdeck.domain.tasks.rules.batch import Batch, EventReason
from quarterdeck.domain.tasks.rules.batch_input import BatchInput, DependencyState, to_dependency_state
from quarterdeck.domain.tasks.rules.dependency_graph import find_cycle
from quarterdeck.domain.tasks.rules.states import TaskRank


class DependencyTracker(Batch):
    def __init__(self, loaded: BatchInput) -> None:
        super().__init__(loaded)
        self._dependency_states = {(state.zone_id, state.id): state for state in loaded.dependency_states}
        self._dependents = {ref: [*dependents] for ref, dependents in loaded.dependents.items()}

    def _dependency_state(self, ref: TaskRef) -> DependencyState | None:
        # Prefer the task to the loaded state: an earlier command in the batch may have changed the task.
        task = self._tasks.get(ref)
        return to_dependency_state(task) if task is not None else self._dependency_states.get(ref)

    def _check_dependencies(self, zone_id: str, depends_on: Sequence[str]) -> tuple[set[str], str | None] | Problem:
        """Return (unmet dependencies, the first failed dependency or None) after the changes of the batch so far."""
        unmet: set[str] = set()
        failed: str | None = None
        for task_id in depends_on:
            state = self._dependency_state((zone_id, task_id))
            if state is None:
                return errors.unknown_dependency(task_id)
            if state.has_failed:
                failed = failed or task_id
            elif not state.is_completed:
                unmet.add(task_id)
        return unmet, failed

    def _add_dependencies(self, ref: TaskRef, depends_on: Sequence[str], unmet: set[str]) -> None:
        self.new_dependencies[ref] = tuple(depends_on)
        self.met_dependencies |= {(ref, task_id) for task_id in depends_on if task_id not in unmet}
        for task_id in unmet:
            self._dependents.setdefault((ref[0], task_id), []).append(ref)

    # -- unblock -------------------------------------------------------------------------------------------------

    def _unblock(self, ended: Task, command: BaseCommand) -> None:
        """Unblock or fail the loaded dependents of an ended task. If more exist, mark the task for the coordinator."""
        for dependent_ref in self._dependents.pop((ended.zone_id, ended.id), ()):
            waiting = self._tasks.get(dependent_ref)
            is_waiting = (
                ended.id in self.new_dependencies.get(dependent_ref, (ended.id,))
                and (dependent_ref, ended.id) not in self.met_dependencies
            )
            if waiting is not None and is_waiting:
                self._apply_end(waiting, ended, command)
        if bool(ended.dependents_pending) != self._loaded.dependents_truncated:
            self._update(ended, states.set_dependents_pending(ended, pending=self._loaded.dependents_truncated))

    def _apply_end(self, waiting: Task, ended: Task, command: BaseCommand) -> None:
        """Update a task that is waiting for a dependency that has ended: fail it, or mark the dependency as met."""
        dependency = ((waiting.zone_id, waiting.id), ended.id)
        self.met_dependencies.add(dependency)
        self.reopened_dependencies.discard(dependency)
        if waiting.status not in (State.PENDING, State.PAUSED):
            return
        if ended.final and waiting.on_dependency_failure == "fail":
            self._update_content(waiting, ContentUpdate(last_error=dependency_error_text(ended.id)))
            after = states.fail_dependency(waiting, states.DEPENDENCY_FAILED, self._now)
            self._transition(waiting, after, "task.failed", command, EventReason(states.DEPENDENCY_FAILED))
            return
        after = states.meet_dependency(waiting, self._now)
        if after.unmet_dependencies == 0 and waiting.unmet_dependencies > 0:
            self._transition(waiting, after, "task.unblocked", command)
        else:
            self._update(waiting, after)
        self._queue_if_ready(after)

    def _unblock_dependents(self, command: UnblockDependents, task: Task) -> Task:
        if task.dependents_pending and (task.final or task.completed_at is not None):
            self._unblock(task, command)
        return self.task((task.zone_id, task.id))

    def _fail_for_cycle(self, command: FailForCycle, task: Task) -> Task:
        """Fail a task in a dependency cycle, if it is still waiting for dependencies."""
        if task.status not in (State.PENDING, State.PAUSED) or not task.unmet_dependencies:
            return task
        self._update_content(
            task, ContentUpdate(last_error=f"Its dependencies form a cycle: {errors.format_cycle(command.cycle)}.")
        )
        after = states.fail_dependency(task, states.DEPENDENCY_CYCLE, self._now)
        self._transition(task, after, "task.failed", command, EventReason(states.DEPENDENCY_CYCLE, cycle=command.cycle))
        return after

    # -- changes by users ----------------------------------------------------------------------------------------

    def _retry(self, command: Retry, task: Task) -> Task | Problem:
        """Queue the task again. It waits for any of its dependencies that were retried too and have not completed."""
        if task.status not in (State.FAILED, State.ABORTED):
            return errors.state_conflict(task, "retried", f"it is {task.status}")
        ref = (task.zone_id, task.id)
        depends_on = self._loaded.dependencies.get(ref, ())
        check = self._check_dependencies(task.zone_id, depends_on)
        if isinstance(check, Problem):
            return check
        unmet, failed = check
        if failed is not None and task.on_dependency_failure == "fail":
            return errors.state_conflict(
                task, "retried", f"its dependency {failed!r} has failed; retry that task first"
            )
        reopened = {(ref, task_id) for task_id in unmet}
        self.reopened_dependencies |= reopened
        self.met_dependencies -= reopened
        for task_id in unmet:
            self._dependents.setdefault((task.zone_id, task_id), []).append(ref)
        after = states.set_dependencies(states.retry(task, self._now), task.dependency_count, len(unmet), self._now)
        self._transition(task, after, "task.requeued", command, EventReason("retry"))
        self._queue_if_ready(after)
        return after

    def _change_fields(self, command: Patch, task: Task) -> Task | Problem:
        if task.status is State.ARCHIVED:
            return errors.state_conflict(task, "changed", "it is ARCHIVED")
        after = states.apply_patch(task, command, self._loaded.timeouts.overdue_ms, self._now)
        if command.depends_on is not None:
            changed = self._replace_dependencies(command.depends_on, after)
            if isinstance(changed, Problem):
                return changed
            after = changed
        if after.priority != task.priority and task.ranked_by is not Strategy.FAIR:
            after = states.set_rank(after, TaskRank(task.ranked_by, ranking.rank_of(task.ranked_by, after)))
        if command.metadata is not None or command.tags is not None:
            self._update_content(task, ContentUpdate(metadata_json=command.metadata, tags=command.tags_json))
        if command.tags is not None:
            ref = (task.zone_id, task.id)
            old_tags = self.new_tags.get(ref, self._loaded.tags.get(ref, ()))
            self.removed_tags |= {(task.zone_id, tag, task.id) for tag in old_tags}
            self.new_tags[ref] = command.tags
        self._transition(task, after, "task.changed", command)
        self._queue_if_ready(after)
        return after

    def _replace_dependencies(self, depends_on: tuple[str, ...], task: Task) -> Task | Problem:
        if task.status not in (State.PENDING, State.PAUSED) or task.attempt:
            return errors.already_started(task.id)
        check = self._check_dependencies(task.zone_id, depends_on)
        if isinstance(check, Problem):
            return check
        unmet, failed = check
        loaded = {
            task_id: dependencies
            for (zone_id, task_id), dependencies in self._loaded.dependencies.items()
            if zone_id == task.zone_id
        }
        changed = {
            task_id: dependencies
            for (zone_id, task_id), dependencies in self.new_dependencies.items()
            if zone_id == task.zone_id
        }
        if cycle := find_cycle(task.id, {**loaded, **changed, task.id: depends_on}):
            return errors.dependency_cycle(cycle)
        ref = (task.zone_id, task.id)
        if failed is not None and task.on_dependency_failure == "fail":
            return errors.failed_dependency(failed)
        self._add_dependencies(ref, depends_on, unmet)
        return states.set_dependencies(task, len(depends_on), len(unmet), self._now)


def dependency_error_text(task_id: str) -> str:
    return f"It depends on {task_id!r}, which has failed or was canceled."
