"""The rank of a task: a number by which ready tasks are ordered, lowest first.

All strategies share one index, and a claim does not depend on the strategy. The rank is set when a task is created. It
is set again when the zone's strategy changes and, except under `fair`, when the task's priority changes.

| strategy | rank                                                    |
|----------|---------------------------------------------------------|
| priority | higher priority first, then older                       |
| sjf      | shorter estimate first, no estimate last, then older    |
| fair     | creators alternate, however many tasks each has queued  |

`fair` is start-time fair queueing: each creator has a virtual clock. The rank of a new task is one more than the rank
of its creator's newest task or the highest rank claimed so far, whichever is higher. A creator who queues 1,000 tasks
alternates with one who queues a single task, and a creator who arrives late does not have to wait for the backlog.
"""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.clock import Millis
from quarterdeck.domain.tasks.model.commands import Create
from quarterdeck.domain.tasks.model.rows import Strategy, Task

PRIORITY_MAX = 10
STEP = 10**13
"""Larger than any timestamp in milliseconds, so that age never outweighs the priority or the estimate."""
NO_ESTIMATE_MINUTES = 525_601
"""One minute more than the largest estimate, so that tasks without an estimate rank last."""


def by_priority(priority: int, created_at: Millis) -> int:
    return (PRIORITY_MAX - priority) * STEP + created_at


def by_estimate(minutes: int | None, created_at: Millis) -> int:
    return (NO_ESTIMATE_MINUTES if minutes is None else minutes) * STEP + created_at


def rank_of(strategy: Strategy, task: Task) -> int:
    """The rank under `priority` or `sjf`. A `fair` rank depends on other tasks and cannot be computed from the row."""
    if strategy is Strategy.SJF:
        return by_estimate(task.estimated_duration_minutes, task.created_at)
    return by_priority(task.priority, task.created_at)


class FairRanks:
    """The ranks of creators under `fair`, and the highest rank claimed in each zone."""

    def __init__(self, loaded: Mapping[tuple[str, str], int]) -> None:
        self._loaded = loaded
        self._ranks = {**loaded}

    def next_rank(self, zone_id: str, creator: str) -> int:
        newest, claimed = self._ranks.get((zone_id, creator), 0), self._ranks.get((zone_id, ""), 0)
        self._ranks[zone_id, creator] = rank = max(newest, claimed) + 1
        return rank

    def record_claim(self, task: Task) -> None:
        if task.ranked_by is Strategy.FAIR and task.rank > self._ranks.get((task.zone_id, ""), 0):
            self._ranks[task.zone_id, ""] = task.rank

    def changed(self) -> dict[tuple[str, str], int]:
        return {key: rank for key, rank in self._ranks.items() if self._loaded.get(key) != rank}


def new_rank(command: Create, strategy: Strategy, fair_ranks: FairRanks, now: Millis) -> int:
    assert command.caller is not None  # the route requires a caller
    match strategy:
        case Strategy.PRIORITY:
            return by_priority(command.priority, now)
        case Strategy.SJF:
            return by_estimate(command.estimated_duration_minutes, now)
        case Strategy.FAIR:
            return fair_ranks.next_rank(command.zone_id, command.caller.subject)
