"""Reads dependencies and dependents for views, with a limit per task, so that one task cannot fill the whole result.

The row of a task stores the number of its dependencies, so the dependencies of a task with more than the limit are read
by a separate statement. The number of dependents is not stored: one statement reads the dependents of all tasks, and
only if its result is truncated, they are read task by task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.domain.tasks.model.rows import Task, TaskRef
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import BoundStatement

DEPENDENCIES_MAX = 10_000
"""Maximum number of dependencies, and of dependents, in the view of a single task."""
LISTED_DEPENDENCIES_MAX = 100
"""The same maximum for each task in a list or claim."""
DEPENDENTS_PER_READ_MAX = 5_000
"""Maximum number of dependents that one statement reads for several tasks together."""


class DependencyLists(msgspec.Struct, frozen=True):
    depends_on: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    has_more_blocks: bool = False


async def read_dependencies(
    tx: Transaction, tasks: Iterable[Task], limits: Mapping[TaskRef, int]
) -> dict[TaskRef, DependencyLists]:
    """Read up to `limits[task]` dependencies, and as many dependents, of each task. Tasks with neither are left out."""
    selected = [task for task in tasks if limits[task.zone_id, task.id]]
    if not selected:
        return {}
    refs = [(task.zone_id, task.id) for task in selected]
    statements = dependency_statements(selected, limits)
    *results, dependents = await tx.read(
        *statements, Q.task_dependents_list(batch=refs, limit=DEPENDENTS_PER_READ_MAX + 1)
    )
    if len(dependents) > DEPENDENTS_PER_READ_MAX:
        result_sets = await tx.read(*(Q.task_dependents_list(batch=[ref], limit=limits[ref] + 1) for ref in refs))
        dependents = [row for rows in result_sets for row in rows]
    depends_on, blocks = group_by_task(row for rows in results for row in rows), group_by_task(dependents)
    return {
        ref: DependencyLists(
            depends_on.get(ref, ()), blocks.get(ref, ())[: limits[ref]], len(blocks.get(ref, ())) > limits[ref]
        )
        for ref in refs
        if ref in depends_on or ref in blocks
    }


def dependency_statements(tasks: Sequence[Task], limits: Mapping[TaskRef, int]) -> list[BoundStatement]:
    """Statements that read the dependencies of these tasks."""
    small_tasks = {(task.zone_id, task.id): task.dependency_count for task in tasks if task.dependency_count}
    large_tasks = [ref for ref, count in small_tasks.items() if count > limits[ref]]
    for ref in large_tasks:
        del small_tasks[ref]
    statements = (
        [Q.task_dependencies_list(batch=[*small_tasks], limit=sum(small_tasks.values()))] if small_tasks else []
    )
    return statements + [Q.task_dependencies_list(batch=[ref], limit=limits[ref]) for ref in large_tasks]


def group_by_task(rows: Iterable[Row]) -> dict[TaskRef, tuple[str, ...]]:
    """Group rows (zone, task, related task) by task."""
    by_task: dict[TaskRef, list[str]] = {}
    for zone_id, task_id, related_id in rows:
        by_task.setdefault((str(zone_id), str(task_id)), []).append(str(related_id))
    return {ref: tuple(sorted(related_ids)) for ref, related_ids in by_task.items()}
