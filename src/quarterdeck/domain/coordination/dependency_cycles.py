"""The walk along the tasks that wait for others, in which cycles are looked for.

All that are found at once are weighed together, so a walk is bounded; the next one goes on where it stopped, and begins
anew after the last. A cycle lies within one zone: so a zone that a walk did not come to the end of is left, whole, to
the next. Only one with more than a walk may hold is taken in pieces, and there a cycle is found if a piece holds all of
it.
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
WAITING_MAX = 100_000
"""Tasks that wait for others, among which cycles are looked for at once."""


@dataclass(frozen=True, slots=True)
class WaitingTasks:
    """Zone → task → what it waits for."""

    depends_on: dict[str, dict[str, list[str]]]
    stopped_at: TaskRef
    """After which the next walk goes on."""


async def load_waiting(cross_zone_engine: Engine, after: TaskRef) -> WaitingTasks:
    """Across zones."""
    found: dict[str, dict[str, list[str]]] = {}
    count = 0
    while count < WAITING_MAX:
        chunk = await cross_zone_engine.read(partial(coordinator_queries.waiting_slice, after=after, limit=SLICE))
        for (zone_id, task_id), dependencies in chunk.depends_on.items():
            found.setdefault(zone_id, {})[task_id] = dependencies
        count += len(chunk.depends_on)
        if chunk.last is None:
            return WaitingTasks(found, START)
        after = chunk.last
    if len(found) > 1:
        del found[after[0]]
        return WaitingTasks(found, (after[0], ""))
    log.warning("more than %d tasks of %s wait for others: cycles are looked for piece by piece", count, after[0])
    return WaitingTasks(found, after)


async def load_waiting_in_zone(cross_zone_engine: Engine, zone_id: str) -> WaitingTasks:
    """In one zone, from its beginning; what is beyond the bound is for the walks across zones."""
    found: dict[str, list[str]] = {}
    after: TaskRef | None = (zone_id, "")
    while after is not None and after[0] == zone_id and len(found) < WAITING_MAX:
        chunk = await cross_zone_engine.read(partial(coordinator_queries.waiting_slice, after=after, limit=SLICE))
        found |= {
            task_id: dependencies for (zone, task_id), dependencies in chunk.depends_on.items() if zone == zone_id
        }
        after = chunk.last
    return WaitingTasks({zone_id: found}, after or START)
