"""Rows of tasks have the state, and the number of the attempt, of which the log last told. Those that are over are put
away and removed after months; what ended a day before and is gone is not missed."""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.core.clock import DAY
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence, Finding, Ref
from quarterdeck.maintenance.history_checker.task_model import TaskTold
from quarterdeck.maintenance.history_checker.task_replay import Tales

GOES_ON = frozenset({"PENDING", "ASSIGNED", "RUNNING", "PAUSED"})


def judge(evidence: Evidence, promise: str) -> Iterator[Finding]:
    last: dict[Ref, tuple[Event, TaskTold]] = {
        (event.zone_id, event.subject): (event, told) for event, told, _ in Tales(evidence).walk()
    }
    there: set[Ref] = set()
    for row in evidence.rows.tasks:
        ref = (row.zone_id, row.id)
        there.add(ref)
        if (known := last.get(ref)) is None:
            if evidence.whole:
                yield Finding(promise, *ref, f"the task {row.id} is there, and the log never let it begin")
            continue
        event, told = known
        if event.to_state != row.status:
            detail = f"the task {row.id} is {row.status}, and was last told to be {event.to_state}"
            yield Finding(promise, *ref, detail, event.pos)
        elif told.attempt != row.attempt:
            detail = f"the task {row.id} is in attempt {row.attempt}, and was last told to be in {told.attempt}"
            yield Finding(promise, *ref, detail, event.pos)
    for ref, (event, _) in last.items():
        is_old = event.to_state not in GOES_ON and event.at < evidence.rows.now - DAY
        if ref not in there and not is_old:
            detail = f"the task {ref[1]} was told to be {event.to_state}, and is not there"
            yield Finding(promise, *ref, detail, event.pos)
