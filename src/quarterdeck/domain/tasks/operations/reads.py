"""Looking at tasks: one, and many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.operations.authorization import Speakers, require_power
from quarterdeck.domain.tasks.model.rows import Content, Ref, Task, Whole
from quarterdeck.domain.tasks.operations import dependency_reads
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound

READ = "tasks.read"
PAGE_MAX = 4 << 20
"""Bytes of what the tasks of one page say: a page ends early rather than hold up everybody else."""
MEASURED = 100
"""Tasks whose size is asked for at once."""
UNTIED = dependency_reads.Ties()
_width = len(Task.__struct_fields__)


class TaskRef(msgspec.Struct, frozen=True):
    zone_id: str
    id: str
    caller: Caller | None = None
    most: int = dependency_reads.SHOWN_MAX
    """Of what it depends on, and of what depends on it."""

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer if self.caller else None


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    zone_id: str
    caller: Caller
    limit: int
    before: str | None = None
    status: str | None = None
    priority: int | None = None
    priority_max: int | None = None
    task_type: str | None = None
    agent_id: str | None = None
    names_agent: bool = False
    """The agent stands in the path: it must be there."""
    created_after: Millis | None = None
    tags: tuple[str, ...] = ()


class TaskPage(msgspec.Struct, frozen=True):
    items: list[Whole]
    following: str | None
    """The last of them, if others follow."""


async def show(tx: Tx, asks: Sequence[TaskRef]) -> list[Whole | Problem | Busy]:
    """Gathered: one statement answers everybody who looks at a task."""
    speakers = Speakers(asks)
    spoken = speakers.statements()
    named: list[tuple[object, ...]] = [*sorted({(ask.zone_id, ask.id) for ask in asks})]
    *answers, rows = await tx.read(*spoken, Q.tasks_whole(batch=named))
    heard = speakers.heard(answers, tx.now)
    most: dict[Ref, int] = {}
    for ask in asks:
        ref = (ask.zone_id, ask.id)
        most[ref] = max(ask.most, most.get(ref, 0))
    found = await _wholes(tx, rows, most)
    return [heard.problem(ask, READ) or found.get((ask.zone_id, ask.id)) or errors.not_found(ask.id) for ask in asks]


async def page(tx: Tx, wanted: TaskFilter) -> TaskPage:
    """As many as are wanted, or as fit. One at least, however large: whoever goes on from there comes to an end."""
    await require_power(tx, wanted.caller, wanted.zone_id, READ)
    [rows] = await tx.read(_page(wanted))
    if not rows:
        await zones.require(tx, wanted.zone_id)
        if wanted.names_agent and wanted.agent_id is not None:
            await _require_agent(tx, (wanted.zone_id, wanted.agent_id))
        return TaskPage([], None)
    names = [str(row[0]) for row in rows]
    shown = await _fitting(tx, wanted.zone_id, names[: wanted.limit])
    refs = [(wanted.zone_id, name) for name in shown]
    [contents] = await tx.read(Q.tasks_whole(batch=[*refs]))
    found = await _wholes(tx, contents, dict.fromkeys(refs, dependency_reads.LISTED_MAX))
    following = shown[-1] if len(shown) < len(names) else None
    return TaskPage([found[ref] for ref in refs if ref in found], following)


async def _fitting(tx: Tx, zone_id: str, names: Sequence[str]) -> Sequence[str]:
    """The first of these that are together no more than fits."""
    used = 0
    for begin in range(0, len(names), MEASURED):
        part = names[begin : begin + MEASURED]
        [rows] = await tx.read(LISTS.tasks_sizes(batch=[(zone_id, name) for name in part]))
        sizes = {str(name): int(str(size)) for name, size in rows}
        for place, name in enumerate(part, begin):
            used += sizes.get(name, 0)
            if used > PAGE_MAX and place:
                return names[:place]
    return names


def _page(wanted: TaskFilter) -> Bound:
    common: dict[str, str | int | None] = {
        "zone_id": wanted.zone_id,
        "before": wanted.before,
        "status": wanted.status,
        "priority": wanted.priority,
        "priority_max": wanted.priority_max,
        "task_type": wanted.task_type,
        "agent_id": wanted.agent_id,
        "created_after": wanted.created_after,
        "limit": wanted.limit + 1,
    }
    if not wanted.tags:
        return LISTS.tasks_page(**common)
    return LISTS.tasks_page_tagged(**common, tag=wanted.tags[0], tags=[(tag,) for tag in wanted.tags[1:]])


async def _require_agent(tx: Tx, ref: tuple[str, str]) -> None:
    [found] = await tx.read(agents.get([ref]))
    if not found:
        raise errors.agent_not_found(ref[1])


async def _wholes(tx: Tx, rows: Sequence[Row], most: Mapping[Ref, int]) -> dict[Ref, Whole]:
    """With what they depend on, and what depends on them."""
    tasks = decode([row[:_width] for row in rows], Task)
    contents = decode([row[_width:] for row in rows], Content)
    tied = await dependency_reads.read(tx, tasks, most)
    found: dict[Ref, Whole] = {}
    for task, content in zip(tasks, contents, strict=True):
        ref = (task.zone_id, task.id)
        own = tied.get(ref, UNTIED)
        found[ref] = Whole(task, content, own.depends_on, own.blocks, own.has_more_blocks)
    return found
