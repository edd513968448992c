"""What tasks depend on, and what depends on them, as far as it is shown: so many of each task, and not a page full of
the first one's.

How many a task depends on stands in its row, so those with more than are shown are asked for by themselves. How many
depend on it stands nowhere: they are asked for all at once, and one by one only if that was cut.
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
"""Of what a task depends on, and of what depends on it, where it is shown by itself."""
LISTED_MAX = 100
"""And where it is one of many."""
DEPENDENTS_PER_READ_MAX = 5_000
"""Dependents that are asked for at once, of however many tasks."""


class DependencyLists(msgspec.Struct, frozen=True):
    depends_on: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    has_more_blocks: bool = False


async def read_dependencies(
    tx: Transaction, tasks: Iterable[Task], limits: Mapping[TaskRef, int]
) -> dict[TaskRef, DependencyLists]:
    """Of those that have any, `most` of each."""
    selected = [task for task in tasks if limits[task.zone_id, task.id]]
    if not selected:
        return {}
    refs = [(task.zone_id, task.id) for task in selected]
    statements = dependency_statements(selected, limits)
    *results, dependents = await tx.read(
        *statements, Q.task_dependents_list(batch=[*refs], limit=DEPENDENTS_PER_READ_MAX + 1)
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
    """What these depend on."""
    small = {(task.zone_id, task.id): task.dependency_count for task in tasks if task.dependency_count}
    large = [ref for ref, count in small.items() if count > limits[ref]]
    for ref in large:
        del small[ref]
    statements = [Q.task_dependencies_list(batch=[*small], limit=sum(small.values()))] if small else []
    return statements + [Q.task_dependencies_list(batch=[ref], limit=limits[ref]) for ref in large]


def group_by_task(rows: Iterable[Row]) -> dict[TaskRef, tuple[str, ...]]:
    """(zone, task, another) of each tie, by task."""
    found: dict[TaskRef, list[str]] = {}
    for zone_id, task_id, related_id in rows:
        found.setdefault((str(zone_id), str(task_id)), []).append(str(related_id))
    return {ref: tuple(sorted(names)) for ref, names in found.items()}
