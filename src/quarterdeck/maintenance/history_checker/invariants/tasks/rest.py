"""Of tasks, everything has come to rest: none waits for a moment that is long past, or for others that are all over;
none is held by an agent that is gone, or beyond its time; and whoever depends on one that has ended has heard of it.
One that waits for an agent is at rest: perhaps there is none for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quarterdeck.core.clock import Millis
from quarterdeck.maintenance.history_checker.model import Evidence, Finding, Ref
from quarterdeck.maintenance.history_checker.task_model import TaskRow
from quarterdeck.maintenance.history_checker.task_replay import HELD

A_MOMENT, OTHERS = 1, 2
"""What a task may wait for besides an agent, as its row has it."""
Past = Callable[[Millis | None], bool]


def judge(evidence: Evidence, promise: str, long_past: Past) -> Iterator[Finding]:
    over: set[Ref] = set()
    waiting: set[Ref] = set()
    for row in evidence.rows.tasks:
        ref = (row.zone_id, row.id)
        if row.final or row.status in ("COMPLETED", "ARCHIVED"):
            over.add(ref)
        elif row.waits == OTHERS:
            waiting.add(ref)
        if (detail := _unsettled(row, long_past)) is not None:
            yield Finding(promise, *ref, f"the task {row.id} is {row.status}, and {detail}")
    for edge in evidence.rows.dependencies:
        if (edge.zone_id, edge.depends_on) not in over:
            waiting.discard((edge.zone_id, edge.task_id))
    for ref in sorted(waiting):
        yield Finding(promise, *ref, f"the task {ref[1]} waits for others, and all of them are over")


def _unsettled(row: TaskRow, long_past: Past) -> str | None:
    if row.spreads:
        return "some that depend on it have not heard of its end"
    if row.waits == A_MOMENT and long_past(row.available_at):
        return "the moment that it waits for is long past"
    if row.status not in HELD:
        return None
    if row.agent_status is None or row.agent_status in ("ERROR", "TERMINATED"):
        return f"its agent {row.agent_id} is {row.agent_status or 'not there'}"
    if long_past(row.agent_silent_from):
        return f"its agent {row.agent_id} was not heard of for long"
    return "its time is long over" if long_past(row.timeout_at) else None
