"""Reads one task, or a page of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.tasks.model.rows import Content, FullTask, Task, TaskRef
from quarterdeck.domain.tasks.operations import dependency_reads
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

READ_PERMISSION = "tasks.read"
PAGE_BYTES_MAX = 4 << 20
"""Maximum content size of a page. A larger page would delay other requests."""
SIZES_PER_READ = 100
"""Number of tasks whose content size one statement reads."""
NO_DEPENDENCIES = dependency_reads.DependencyLists()
_task_column_count = len(Task.__struct_fields__)


class TaskLookup(msgspec.Struct, frozen=True):
    zone_id: str
    id: str
    caller: Caller | None = None
    dependency_limit: int = dependency_reads.DEPENDENCIES_MAX
    """Maximum number of dependencies, and of dependents."""

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer if self.caller else None


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    zone_id: str
    caller: Caller
    limit: int
    before: str | None = None
    """Only tasks with a lower id, which are older."""
    status: str | None = None
    priority_min: int | None = None
    priority_max: int | None = None
    task_type: str | None = None
    agent_id: str | None = None
    agent_must_exist: bool = False
    """If the agent does not exist, return an error, not an empty page. Set if the agent id is in the path."""
    created_after: Millis | None = None
    tags: tuple[str, ...] = ()


class TaskPage(msgspec.Struct, frozen=True):
    items: list[FullTask]
    next_before: str | None
    """The id of the last task on this page, if more tasks follow."""


def load_statement(refs: Sequence[TaskRef]) -> BoundStatement:
    """The statement that reads the columns of these tasks that decisions read."""
    return Q.tasks_get(batch=refs)


def states_statement(refs: Sequence[TaskRef]) -> BoundStatement:
    """The statement that reads the states of these tasks. Its rows begin with the ids of the zone and the task."""
    return Q.task_dependency_states(batch=refs)


async def read_tasks(tx: Transaction, lookups: Sequence[TaskLookup]) -> list[FullTask | Problem | Busy]:
    """Read tasks for several requests together. The number of statements does not depend on the number of requests."""
    task_refs = sorted({(lookup.zone_id, lookup.id) for lookup in lookups})
    batch, [rows] = await access.load_with_roles(tx, lookups, Q.tasks_with_content(batch=task_refs))
    limits: dict[TaskRef, int] = {}
    for lookup in lookups:
        ref = (lookup.zone_id, lookup.id)
        limits[ref] = max(lookup.dependency_limit, limits.get(ref, 0))
    full_tasks = await _load_full_tasks(tx, rows, limits)
    return [
        batch.permission_problem(lookup, READ_PERMISSION)
        or full_tasks.get((lookup.zone_id, lookup.id))
        or errors.task_not_found(lookup.id)
        for lookup in lookups
    ]


async def list_tasks(tx: Transaction, filters: TaskFilter) -> TaskPage:
    """List up to `limit` tasks whose content fits in a page. A page has at least one task, so that paging advances."""
    await access.require_permission(tx, filters.caller, filters.zone_id, READ_PERMISSION)
    [rows] = await tx.read(_page_statement(filters))
    if not rows:
        await zones.require_zone(tx, filters.zone_id)
        if filters.agent_must_exist and filters.agent_id is not None:
            await _require_agent(tx, (filters.zone_id, filters.agent_id))
        return TaskPage([], None)
    task_ids = [str(row[0]) for row in rows]
    fitting = await _fitting_prefix(tx, filters.zone_id, task_ids[: filters.limit])
    refs = [(filters.zone_id, task_id) for task_id in fitting]
    [rows] = await tx.read(Q.tasks_with_content(batch=refs))
    full_tasks = await _load_full_tasks(tx, rows, dict.fromkeys(refs, dependency_reads.LISTED_DEPENDENCIES_MAX))
    next_before = fitting[-1] if len(fitting) < len(task_ids) else None
    return TaskPage([full_tasks[ref] for ref in refs if ref in full_tasks], next_before)


async def _fitting_prefix(tx: Transaction, zone_id: str, task_ids: Sequence[str]) -> Sequence[str]:
    """Return the longest prefix of `task_ids` whose content fits in a page, but at least one id."""
    used_bytes = 0
    for start in range(0, len(task_ids), SIZES_PER_READ):
        chunk = task_ids[start : start + SIZES_PER_READ]
        [rows] = await tx.read(LISTS.tasks_sizes(batch=[(zone_id, task_id) for task_id in chunk]))
        sizes = {str(task_id): int(str(size)) for task_id, size in rows}
        for index, task_id in enumerate(chunk, start):
            used_bytes += sizes.get(task_id, 0)
            if used_bytes > PAGE_BYTES_MAX and index:
                return task_ids[:index]
    return task_ids


def _page_statement(filters: TaskFilter) -> BoundStatement:
    statement = (
        partial(LISTS.tasks_page_tagged, tag=filters.tags[0], tags=[(tag,) for tag in filters.tags[1:]])
        if filters.tags
        else LISTS.tasks_page
    )
    return statement(
        zone_id=filters.zone_id,
        before=filters.before,
        status=filters.status,
        priority_min=filters.priority_min,
        priority_max=filters.priority_max,
        task_type=filters.task_type,
        agent_id=filters.agent_id,
        created_after=filters.created_after,
        limit=filters.limit + 1,
    )


async def _require_agent(tx: Transaction, ref: tuple[str, str]) -> None:
    if not await tx.has_rows(agents.load_statement([ref])):
        raise errors.agent_not_found(ref[1])


async def _load_full_tasks(
    tx: Transaction, rows: Sequence[Row], limits: Mapping[TaskRef, int]
) -> dict[TaskRef, FullTask]:
    """Decode rows of `tasks_with_content`, and read the dependencies and dependents of these tasks."""
    tasks = decode([row[:_task_column_count] for row in rows], Task)
    contents = decode([row[_task_column_count:] for row in rows], Content)
    dependencies = await dependency_reads.read_dependencies(tx, tasks, limits)
    full_tasks: dict[TaskRef, FullTask] = {}
    for task, content in zip(tasks, contents, strict=True):
        ref = (task.zone_id, task.id)
        task_dependencies = dependencies.get(ref, NO_DEPENDENCIES)
        full_tasks[ref] = FullTask(
            task, content, task_dependencies.depends_on, task_dependencies.blocks, task_dependencies.has_more_blocks
        )
    return full_tasks
