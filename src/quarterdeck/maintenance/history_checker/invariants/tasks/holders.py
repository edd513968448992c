"""Every attempt at a task had one holder, by the log: it begins when none is under way, under the next number, or the
same if the last was given back uncounted; and what is told of an attempt is told of the one under way. By the
histories: whoever was handed an attempt is the agent by which the log has it begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence, Finding, Op, Outcome
from quarterdeck.maintenance.history_checker.task_model import TaskTold
from quarterdeck.maintenance.history_checker.task_replay import HELD, Tales, TaskTale, begins

Attempt = tuple[str, str, int]
"""(zone, task, number)"""


def judge(evidence: Evidence, promise: str, begun: Counter[Attempt]) -> Iterator[Finding]:
    """Counts in `begun` how often each attempt was."""
    by_whom: dict[Attempt, set[str | None]] = {}
    for event, told, tale in Tales(evidence).walk():
        if (detail := _wrong(event, told, tale)) is not None:
            yield Finding(promise, event.zone_id, event.subject, detail, event.pos)
        if begins(event):
            attempt = (event.zone_id, event.subject, told.attempt)
            begun[attempt] += 1
            by_whom.setdefault(attempt, set()).add(told.agent_id)
    yield from _by_others(evidence, promise, by_whom)


def _wrong(event: Event, told: TaskTold, tale: TaskTale) -> str | None:
    name, number = event.subject, told.attempt
    if begins(event):
        if tale.is_held:
            return f"the task {name} was begun again (attempt {number}) while attempt {tale.attempt} ran"
        if number != tale.attempt + 1:
            return f"attempt {number} of {name} was begun after attempt {tale.attempt}"
        return None
    # One that is given back is told of under the number before it.
    expected = tale.attempt - 1 if event.type == "task.released" else tale.attempt
    if event.from_state in HELD and tale.is_held and number != expected:
        return f"{event.type} of {name} is told of attempt {number} while attempt {tale.attempt} ran"
    return None


def _by_others(evidence: Evidence, promise: str, by_whom: dict[Attempt, set[str | None]]) -> Iterator[Finding]:
    for call in evidence.history:
        if call.op != Op.TASK_CLAIM or call.outcome is not Outcome.DONE or call.work is None:
            continue
        agent = call.work.asked.agent_id
        for lease in call.work.leases:
            known = by_whom.get((call.zone, lease.id, lease.attempt))
            if agent is not None and known is not None and agent not in known:
                told = " and ".join(sorted(str(who) for who in known))
                detail = f"attempt {lease.attempt} of {lease.id} was handed to {agent}, and was begun by {told}"
                yield Finding(promise, call.zone, lease.id, detail, call=call.where)
