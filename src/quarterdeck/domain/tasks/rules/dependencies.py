"""Dependencies between tasks: which are met, and which tasks wait for which.

A dependency is unmet or met. When a task completes, each dependency on it is met. A dependent without unmet
dependencies is ready, or waits for its start time. When a task fails with no retry left or is canceled, its dependents
fail too, unless their `onDependencyFailure` is `run`: then they run anyway. A batch loads only dependents whose
dependency is unmet, up to a limit. If there are more, the ended task stays marked (`dependents_pending`), and later
batches unblock the remaining dependents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quarterdeck.core.batch_rows import BatchRows
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.rows import Task, TaskRef
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.batch_input import BatchInput, DependencyState
from quarterdeck.domain.tasks.rules.dependency_graph import find_cycle


@dataclass(frozen=True, slots=True)
class DependencyCheck:
    unmet: frozenset[str]
    failed: str | None
    """The first dependency that has failed or was canceled."""


_ALL_MET = DependencyCheck(frozenset(), None)


class DependencyTracker:
    def __init__(self, loaded: BatchInput, tasks: BatchRows[Task]) -> None:
        self._tasks = tasks
        self._loaded = loaded.dependencies
        self._states = {(state.zone_id, state.id): state for state in loaded.dependency_states}
        self._dependents = {ref: [*dependents] for ref, dependents in loaded.dependents.items()}
        self.new: dict[TaskRef, tuple[str, ...]] = {}
        """Dependencies of new tasks, and of tasks whose dependencies were replaced."""
        self.met: set[tuple[TaskRef, str]] = set()
        """(task, dependency) pairs to mark as met."""
        self.reopened: set[tuple[TaskRef, str]] = set()
        """(task, dependency) pairs to mark as unmet again."""

    def check(self, zone_id: str, depends_on: Sequence[str]) -> DependencyCheck | Problem:
        """Which of the dependencies are unmet, and which has failed, after the changes of the batch so far."""
        if not depends_on:
            return _ALL_MET
        unmet: set[str] = set()
        failed: str | None = None
        for task_id in depends_on:
            ref = (zone_id, task_id)
            # Prefer the task to the loaded state: an earlier command in the batch may have changed the task.
            state: Task | DependencyState | None = self._tasks.get(ref) or self._states.get(ref)
            if state is None:
                return errors.unknown_dependency(task_id)
            if state.final:
                failed = failed or task_id
            elif state.completed_at is None:
                unmet.add(task_id)
        return DependencyCheck(frozenset(unmet), failed)

    def check_retry(self, ref: TaskRef) -> DependencyCheck | Problem:
        """The same for the stored dependencies of a task that is retried."""
        return self.check(ref[0], self._loaded.get(ref, ()))

    def find_cycle(self, ref: TaskRef, depends_on: Sequence[str]) -> list[str] | None:
        """The cycle that these dependencies of a task would form, or None."""
        zone_id, task_id = ref
        edges = {name: of for (zone, name), of in (*self._loaded.items(), *self.new.items()) if zone == zone_id}
        return find_cycle(task_id, {**edges, task_id: depends_on})

    def put(self, ref: TaskRef, depends_on: tuple[str, ...], unmet: frozenset[str]) -> None:
        """Set the dependencies of a new task, or replace those of a stored one."""
        self.new[ref] = depends_on
        if depends_on:
            self.met |= {(ref, task_id) for task_id in depends_on if task_id not in unmet}
            self._add_dependent(ref, unmet)

    def reopen(self, ref: TaskRef, unmet: frozenset[str]) -> None:
        """Make a retried task wait for its dependencies that were retried too and have not completed."""
        pairs = {(ref, task_id) for task_id in unmet}
        self.reopened |= pairs
        self.met -= pairs
        self._add_dependent(ref, unmet)

    def _add_dependent(self, ref: TaskRef, depends_on: Iterable[str]) -> None:
        for task_id in depends_on:
            self._dependents.setdefault((ref[0], task_id), []).append(ref)

    def meet(self, ended: Task) -> list[Task]:
        """Mark the dependencies on an ended task as met, and return the loaded tasks that waited for it."""
        waiting: list[Task] = []
        for ref in self._dependents.pop(ended.ref, ()):
            pair = (ref, ended.id)
            task = self._tasks.get(ref)
            if task is not None and pair not in self.met and ended.id in self.new.get(ref, (ended.id,)):
                self.met.add(pair)
                self.reopened.discard(pair)
                waiting.append(task)
        return waiting
