"""In what order tasks are handed out: each strategy gives a task a number, and the lowest goes first.

So one index serves every strategy, and a claim needs to know none of them. The number is given when a task is made, and
again when its priority or the zone's strategy changes.

| strategy | the number                                                                              |
|----------|-----------------------------------------------------------------------------------------|
| priority | the higher first, and among equals the older                                              |
| sjf      | the shorter its estimate the earlier; without an estimate it comes last; then the older   |
| fair     | creators take turns, however much each of them asks for                                   |

Fair turns are those of a queue in which every creator has a clock of its own: a task's turn is one after its creator's
last, and never before the turn that was last served. Who asks for a thousand things gets every second turn while
another asks for one, and one who comes late does not have to wait for all that was asked before.
"""

from __future__ import annotations

from quarterdeck.core.clock import Millis
from quarterdeck.domain.tasks.model.rows import Strategy, Task

PRIORITY_MAX = 10
STEP = 10**13
"""More milliseconds than will be: what is older never outweighs what is more urgent."""
NO_ESTIMATE = 525_601
"""Minutes; of a task without an estimate."""


def by_priority(priority: int, created_at: Millis) -> int:
    return (PRIORITY_MAX - priority) * STEP + created_at


def by_estimate(minutes: int | None, created_at: Millis) -> int:
    return (NO_ESTIMATE if minutes is None else minutes) * STEP + created_at


def next_fair_rank(creator_rank: int, claimed_rank: int) -> int:
    return max(creator_rank, claimed_rank) + 1


def rank_of(strategy: Strategy, task: Task) -> int:
    """By what stands in the row; fair turns are remembered, not found again."""
    if strategy is Strategy.SJF:
        return by_estimate(task.estimated_duration_minutes, task.created_at)
    return by_priority(task.priority, task.created_at)
