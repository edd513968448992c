"""Loads the tasks that wait for dependencies, to search them for cycles.

One scan loads at most WAITING_MAX tasks. The next scan continues where this one stopped. After the last task, it starts
from the beginning. A cycle is always within one zone, so if a scan stops within a zone, the next scan loads that whole
zone. Only a zone with more than WAITING_MAX waiting tasks is searched in parts. There, a cycle is found only if one
part contains all of it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from quarterdeck.domain.tasks.model.rows import TaskRef
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.engine.transaction import Engine

log = logging.getLogger("quarterdeck.coordinator")
START: TaskRef = ("", "")
SLICE = 1_000
"""Maximum number of waiting tasks per statement."""
WAITING_MAX = 100_000
"""Maximum number of waiting tasks per scan."""


@dataclass(frozen=True, slots=True)
class WaitingTasks:
    depends_on: dict[str, dict[str, list[str]]]
    """Zone → task → unmet dependencies."""
    stopped_at: TaskRef
    """The next scan continues after this task."""


async def load_waiting(cross_zone_engine: Engine, after: TaskRef) -> WaitingTasks:
    """Load the waiting tasks of all zones, starting after a position."""
    depends_on: dict[str, dict[str, list[str]]] = {}
    count = 0
    while count < WAITING_MAX:
        chunk = await cross_zone_engine.read(partial(coordinator_queries.load_waiting_slice, after=after, limit=SLICE))
        for (zone_id, task_id), dependencies in chunk.depends_on.items():
            depends_on.setdefault(zone_id, {})[task_id] = dependencies
        count += len(chunk.depends_on)
        if chunk.last_task is None:
            return WaitingTasks(depends_on, START)
        after = chunk.last_task
    if len(depends_on) > 1:
        del depends_on[after[0]]
        return WaitingTasks(depends_on, (after[0], ""))
    log.warning("zone %s has more than %d waiting tasks: it is searched for cycles in parts", after[0], count)
    return WaitingTasks(depends_on, after)


async def load_waiting_in_zone(cross_zone_engine: Engine, zone_id: str) -> WaitingTasks:
    """Load the waiting tasks of one zone, up to WAITING_MAX. The scans of all zones cover the other tasks."""
    depends_on: dict[str, list[str]] = {}
    after: TaskRef | None = (zone_id, "")
    while after is not None and after[0] == zone_id and len(depends_on) < WAITING_MAX:
        chunk = await cross_zone_engine.read(partial(coordinator_queries.load_waiting_slice, after=after, limit=SLICE))
        depends_on |= {
            task_id: dependencies for (zone, task_id), dependencies in chunk.depends_on.items() if zone == zone_id
        }
        after = chunk.last_task
    return WaitingTasks({zone_id: depends_on}, after or START)
