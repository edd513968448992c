"""What the coordinator looks for, across zones. Everything is found by an index of its own, and bounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.domain.tasks.model.rows import Attempt, Overdue, Ref, State, Task
from quarterdeck.domain.tasks.operations.load import kinds_of
from quarterdeck.domain.tasks.queries import COORDINATING, Q
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, Kind
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode

Batch = list[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Unsettled:
    """What needs somebody to act, so many of each at most."""

    timed_out: list[Attempt]
    """Attempts whose time is over, or whose launch was never heard of."""
    overdue: list[Overdue]
    """Long past their estimate; or warned, and not moved since."""
    due: list[Ref]
    """What has waited for its moment, or for the end of its backoff, long enough."""
    spreading: list[Ref]
    """Ended, and some that depend on them have not heard of it."""
    unranked: list[str]
    """Zones whose strategy has changed."""
    next_ms: Millis | None
    """In how many milliseconds the next moment comes; None if none is known."""


async def unsettled(tx: Tx, limit: int, zone_id: str | None = None) -> Unsettled:
    """In all zones, or of tasks only in one. In one trip: it is asked after every commit that this process hears of."""
    timed_out, overdue, due, spreading, unranked, [moments] = await tx.read(
        COORDINATING.tasks_timed_out(limit=limit, zone_id=zone_id),
        COORDINATING.tasks_overdue(limit=limit, zone_id=zone_id),
        COORDINATING.tasks_due(limit=limit, zone_id=zone_id),
        COORDINATING.tasks_spreading(limit=limit, zone_id=zone_id),
        COORDINATING.task_strategies_unsettled(limit=limit),
        COORDINATING.tasks_next_moment(),
    )
    return Unsettled(
        decode(timed_out, Attempt),
        decode(overdue, Overdue),
        _refs(due),
        _refs(spreading),
        [str(zone_id) for (zone_id,) in unranked],
        _next(moments),
    )


def _next(row: Row) -> Millis | None:
    *moments, now = row
    known = [int(str(moment)) for moment in moments if moment is not None]
    return max(0, min(known) - int(str(now))) if known else None


# -- what may begin ----------------------------------------------------------------------------------------------


async def ready_classes(tx: Tx, zones: Iterable[str]) -> dict[ClassRef, Kind]:
    """Of which something may begin in these zones."""
    [rows] = await tx.read(Q.tasks_classes_ready(batch=[(zone_id,) for zone_id in sorted(set(zones))]))
    return kinds_of(rows)[0]


async def ready_of(tx: Tx, wanted: Mapping[ClassRef, int]) -> dict[ClassRef, list[tuple[int, str]]]:
    """The next of each class, (turn, task), so many of each."""
    classes = sorted(wanted)
    answers = await tx.read(
        *(
            COORDINATING.tasks_ready_of(zone_id=zone_id, class_id=name, limit=wanted[zone_id, name])
            for zone_id, name in classes
        )
    )
    return {
        ref: [(int(str(turn)), str(task_id)) for turn, task_id in rows]
        for ref, rows in zip(classes, answers, strict=True)
    }


# -- what waits for others ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slice:
    """Tasks that wait for others, (zone, task) → what for."""

    depends_on: dict[Ref, list[str]]
    last: Ref | None
    """Where the next slice begins; None if this was the last."""


async def waiting_slice(tx: Tx, after: Ref, limit: int) -> Slice:
    [rows] = await tx.read(COORDINATING.tasks_waiting_slice(zone_id=after[0], id=after[1], limit=limit))
    found: dict[Ref, list[str]] = {}
    for zone_id, task_id, ahead in rows:
        on = found.setdefault((str(zone_id), str(task_id)), [])
        if ahead is not None:
            on.append(str(ahead))
    return Slice(found, max(found) if len(found) == limit else None)


async def anything_waits(tx: Tx) -> bool:
    """Whether any task waits for another."""
    [rows] = await tx.read(COORDINATING.tasks_waiting_some())
    return bool(rows)


# -- figures, and single ones ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counted:
    ready: int
    """That wait for an agent and nothing else."""
    held: int


async def counted(tx: Tx, zones: Iterable[str], limit: int) -> Counted:
    """How many tasks of these zones wait for an agent, or have one; of each zone no more than so many are counted."""
    named = sorted({*zones})
    batch: Batch = [(zone_id, state) for zone_id in named for state in (State.ASSIGNED, State.RUNNING)]
    ready, held = await tx.read(
        COORDINATING.tasks_ready_counted(batch=[(zone_id,) for zone_id in named], limit=limit),
        COORDINATING.tasks_counted(batch=batch, limit=limit),
    )
    return Counted(_sum(ready), _sum(held))


async def pending(tx: Tx, limit: int) -> int:
    """How many tasks wait for an agent and nothing else, in all zones."""
    [[row]] = await tx.read(COORDINATING.tasks_pending_count(limit=limit))
    return int(str(row[0]))


async def named(tx: Tx, refs: Sequence[Ref]) -> dict[Ref, Task]:
    [rows] = await tx.read(Q.tasks_get(batch=[*sorted(refs)]))
    return {(task.zone_id, task.id): task for task in decode(rows, Task)}


async def naming(tx: Tx, agents: Sequence[Ref]) -> set[Ref]:
    """Those of these agents that any task which is kept names, however it stands."""
    [rows] = await tx.read(COORDINATING.tasks_naming(batch=[*sorted(agents)]))
    return {(str(zone_id), str(agent_id)) for zone_id, agent_id, is_named in rows if is_named}


def _sum(rows: Sequence[Row]) -> int:
    return sum(int(str(number)) for (number,) in rows)


def _refs(rows: Sequence[Row]) -> list[Ref]:
    return [(str(zone_id), str(name)) for zone_id, name in rows]
