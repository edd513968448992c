"""Looking at tasks: one, many, and what the coordinator looks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.wire import Bearer, Caller
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.operations.speaking import Speakers, require_power
from quarterdeck.domain.tasks.model.rows import Content, HeldTask, Ref, State, Task, Whole
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.tasks.rules import refusals
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.tx import Tx
from quarterdeck.store.port import Row, decode
from quarterdeck.store.sql import Bound

READ = "tasks.read"
BLOCKS_MAX = 20_000
"""Dependents that are shown of one task, or of all on a page."""
_width = len(Task.__struct_fields__)


class TaskRef(msgspec.Struct, frozen=True):
    zone_id: str
    id: str
    caller: Caller | None = None

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


async def show(tx: Tx, asks: Sequence[TaskRef]) -> list[Whole | Problem | Busy]:
    """Gathered: one statement answers everybody who looks at a task."""
    speakers = Speakers(asks)
    spoken = speakers.statements()
    named: list[tuple[object, ...]] = [*sorted({(ask.zone_id, ask.id) for ask in asks})]
    *answers, rows = await tx.read(*spoken, Q.tasks_whole(batch=named))
    heard = speakers.heard(answers, tx.now)
    found = {(whole.task.zone_id, whole.task.id): whole for whole in await _wholes(tx, rows)}
    return [
        heard.problem(ask, READ) or found.get((ask.zone_id, ask.id)) or refusals.not_found(ask.id)
        for ask in asks
    ]


async def page(tx: Tx, wanted: TaskFilter) -> list[Whole]:
    await require_power(tx, wanted.caller, wanted.zone_id, READ)
    [rows] = await tx.read(_page(wanted))
    if not rows:
        await zones.require(tx, wanted.zone_id)
        if wanted.names_agent and wanted.agent_id is not None:
            await _require_agent(tx, (wanted.zone_id, wanted.agent_id))
    return await _wholes(tx, rows)


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
        "limit": wanted.limit,
    }
    if not wanted.tags:
        return Q.tasks_page(**common)
    return Q.tasks_page_tagged(**common, tag=wanted.tags[0], tags=[(tag,) for tag in wanted.tags[1:]])


async def _require_agent(tx: Tx, ref: tuple[str, str]) -> None:
    [found] = await tx.read(agents.get([ref]))
    if not found:
        raise refusals.agent_not_found(ref[1])


async def _wholes(tx: Tx, rows: Sequence[Row]) -> list[Whole]:
    """With what they depend on, and what depends on them."""
    tasks = decode([row[:_width] for row in rows], Task)
    contents = decode([row[_width:] for row in rows], Content)
    refs: list[tuple[object, ...]] = [(task.zone_id, task.id) for task in tasks]
    if not refs:
        return []
    ahead, behind = await tx.read(Q.tasks_depend(batch=refs), Q.tasks_blocks(batch=refs, limit=BLOCKS_MAX))
    depends = _gathered((row[1], row[0], row[2]) for row in ahead)
    blocks = _gathered((row[0], row[1], row[2]) for row in behind)
    return [
        Whole(
            task, content, depends.get((task.zone_id, task.id), ()), blocks.get((task.zone_id, task.id), ())
        )
        for task, content in zip(tasks, contents, strict=True)
    ]


def _gathered(rows: Iterable[tuple[object, object, object]]) -> dict[Ref, tuple[str, ...]]:
    found: dict[Ref, list[str]] = {}
    for zone_id, one, other in rows:
        found.setdefault((str(zone_id), str(one)), []).append(str(other))
    return {ref: tuple(names) for ref, names in found.items()}


# -- across zones, for the coordinator ----------------------------------------------------------------------------


async def held(tx: Tx, agents: Iterable[tuple[str, str]], limit: int) -> list[HeldTask]:
    """What these agents, (zone, agent), hold."""
    batch: list[tuple[object, ...]] = [
        (zone_id, agent_id, state)
        for zone_id, agent_id in agents
        for state in (State.ASSIGNED, State.RUNNING)
    ]
    [rows] = await tx.read(Q.tasks_held(batch=batch, limit=limit))
    return decode(rows, HeldTask)
