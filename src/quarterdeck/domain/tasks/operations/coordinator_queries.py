"""The coordinator's queries, across zones. Each uses an index and reads up to a limit, or only given keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.domain.tasks.model.rows import AgentRef, OverdueAttempt, State, Task, TaskRef, TimedOutAttempt
from quarterdeck.domain.tasks.operations.load import decode_classes
from quarterdeck.domain.tasks.queries import COORDINATOR, Q
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, TaskClass
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode


@dataclass(frozen=True, slots=True)
class DueTasks:
    """Tasks that the coordinator must act on, up to a limit of each kind."""

    timed_out: list[TimedOutAttempt]
    """Attempts past their timeout, or assigned and not launched in time."""
    overdue: list[OverdueAttempt]
    """Attempts that are long past their estimate, or were warned and have made no progress since."""
    due: list[TaskRef]
    """Tasks whose start time has passed or whose backoff has ended."""
    dependents_pending: list[TaskRef]
    """Ended tasks that still have blocked dependents."""
    zones_to_rank: list[str]
    """Zones whose strategy has changed and whose tasks are not all re-ranked yet."""
    next_due_ms: Millis | None
    """Milliseconds until the next task or attempt is due; None if there is none."""


async def load_due_tasks(tx: Transaction, limit: int, zone_id: str | None = None) -> DueTasks:
    """Load the due tasks of all zones, or of one. `zones_to_rank` and `next_due_ms` always cover all zones.

    All queries run in one round trip, because this runs after every commit that wakes the process.
    """
    timed_out, overdue, due, dependents_pending, zone_rows, [due_times] = await tx.read(
        COORDINATOR.tasks_timed_out(limit=limit, zone_id=zone_id),
        COORDINATOR.tasks_overdue(limit=limit, zone_id=zone_id),
        COORDINATOR.tasks_due(limit=limit, zone_id=zone_id),
        COORDINATOR.tasks_with_pending_dependents(limit=limit, zone_id=zone_id),
        COORDINATOR.task_strategies_unfinished(limit=limit),
        COORDINATOR.tasks_next_due_time(),
    )
    return DueTasks(
        decode(timed_out, TimedOutAttempt),
        decode(overdue, OverdueAttempt),
        _refs(due),
        _refs(dependents_pending),
        [str(zone_id) for (zone_id,) in zone_rows],
        _next_due_ms(due_times),
    )


def _next_due_ms(row: Row) -> Millis | None:
    *due_times, now = row
    upcoming = [int(str(due_time)) for due_time in due_times if due_time is not None]
    return max(0, min(upcoming) - int(str(now))) if upcoming else None


# -- ready tasks -------------------------------------------------------------------------------------------------


async def load_ready_classes(tx: Transaction, zones: Iterable[str]) -> dict[ClassRef, TaskClass]:
    """Load the classes of these zones that have ready tasks."""
    [rows] = await tx.read(Q.task_classes_ready(batch=[(zone_id,) for zone_id in sorted(set(zones))]))
    return decode_classes(rows)[0]


async def load_ready_tasks(tx: Transaction, limits: Mapping[ClassRef, int]) -> dict[ClassRef, list[tuple[int, str]]]:
    """Load (rank, task id) of the next ready tasks of each class, up to the limit of that class."""
    classes = sorted(limits)
    results = await tx.read(
        *(
            COORDINATOR.tasks_ready_in_class(zone_id=zone_id, class_id=class_id, limit=limits[zone_id, class_id])
            for zone_id, class_id in classes
        )
    )
    return {
        ref: [(int(str(rank)), str(task_id)) for rank, task_id in rows]
        for ref, rows in zip(classes, results, strict=True)
    }


# -- waiting tasks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WaitingSlice:
    depends_on: dict[TaskRef, list[str]]
    """Waiting task → its unmet dependencies."""
    last_task: TaskRef | None
    """The next slice starts after this task. None if there is no next slice."""


async def load_waiting_slice(tx: Transaction, after: TaskRef, limit: int) -> WaitingSlice:
    [rows] = await tx.read(COORDINATOR.tasks_waiting_slice(zone_id=after[0], id=after[1], limit=limit))
    depends_on: dict[TaskRef, list[str]] = {}
    for zone_id, task_id, dependency in rows:
        dependencies = depends_on.setdefault((str(zone_id), str(task_id)), [])
        if dependency is not None:
            dependencies.append(str(dependency))
    return WaitingSlice(depends_on, max(depends_on) if len(depends_on) == limit else None)


async def has_waiting_tasks(tx: Transaction) -> bool:
    return await tx.has_rows(COORDINATOR.tasks_any_waiting())


# -- counts and lookups ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskCounts:
    ready: int
    held: int


async def count_tasks(tx: Transaction, zones: Iterable[str], limit: int) -> TaskCounts:
    """Count the ready tasks and the held tasks of these zones, up to `limit` per zone and state."""
    zone_ids = sorted({*zones})
    batch = [(zone_id, state) for zone_id in zone_ids for state in (State.ASSIGNED, State.RUNNING)]
    ready, held = await tx.read(
        COORDINATOR.tasks_count_ready(batch=[(zone_id,) for zone_id in zone_ids], limit=limit),
        COORDINATOR.tasks_count_by_state(batch=batch, limit=limit),
    )
    return TaskCounts(_sum(ready), _sum(held))


async def count_ready_tasks(tx: Transaction, limit: int) -> int:
    """Count the ready tasks of all zones, up to `limit`."""
    [[row]] = await tx.read(COORDINATOR.tasks_count_ready_all_zones(limit=limit))
    return int(str(row[0]))


async def load_tasks(tx: Transaction, refs: Sequence[TaskRef]) -> dict[TaskRef, Task]:
    return {(task.zone_id, task.id): task for task in await tx.fetch(Task, Q.tasks_get(batch=sorted(refs)))}


async def find_agents_named_by_tasks(tx: Transaction, agents: Sequence[AgentRef]) -> set[AgentRef]:
    """Return those of the given agents that any stored task refers to, whatever its state."""
    [rows] = await tx.read(COORDINATOR.agents_named_by_tasks(batch=sorted(agents)))
    return {(str(zone_id), str(agent_id)) for zone_id, agent_id, is_named in rows if is_named}


def _sum(rows: Sequence[Row]) -> int:
    return sum(int(str(number)) for (number,) in rows)


def _refs(rows: Sequence[Row]) -> list[TaskRef]:
    return [(str(zone_id), str(task_id)) for zone_id, task_id in rows]
