"""What tasks cost, and the budgets that this is charged to: within the transaction of whoever is told of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.tasks.model.commands import Cost
from quarterdeck.domain.tasks.model.cost_types import Budget, Scope, Sum
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.domain.tasks.queries import MONEY
from quarterdeck.domain.tasks.rules import budgets as rules
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound, pieces

Batch = list[tuple[object, ...]]
SERVER = "server"
NOBODY = ""
"""Of costs that were said by hand, when no agent had the task."""


def statements(zones: Collection[str]) -> list[Bound]:
    """What finds out which budgets of these zones are spent; to be read with the zones' locks."""
    return [MONEY.budgets_spent_of_zones(batch=_zones(zones))] if zones else []


class Budgets(rules.Closed):
    """Those that are spent at a moment."""

    @classmethod
    def of(cls, answers: Sequence[Sequence[Row]], now: Millis) -> Budgets:
        return cls(decode([row for rows in answers for row in rows], Budget), now)


async def write(tx: Tx, costs: Sequence[tuple[Task, Cost]], now: Millis) -> None:
    """What was spent, in one statement for each table, under the zones' locks."""
    day = rules.day_of(now)
    by_task: dict[tuple[object, ...], Sum] = {}
    by_day: dict[tuple[object, ...], Sum] = {}
    for task, cost in costs:
        said = Sum(cost.usd_micros, cost.input_tokens, cost.output_tokens)
        who = task.agent_id or NOBODY
        for sums, key in (
            (by_task, (task.zone_id, task.id, who, cost.model, day)),
            (by_day, (task.zone_id, day, task.task_type, who, cost.model)),
        ):
            sums[key] = sums.get(key, Sum()) + said
    for piece in pieces(_rows(by_task)):
        tx.write(MONEY.task_costs_add(batch=piece))
    for piece in pieces(_rows(by_day)):
        tx.write(MONEY.cost_days_add(batch=piece))
    await _charge(tx, costs, now)


async def _charge(tx: Tx, costs: Sequence[tuple[Task, Cost]], now: Millis) -> None:
    [rows] = await tx.read(MONEY.budgets_of_zones(batch=_zones({task.zone_id for task, _ in costs})))
    if not rows:
        return
    charges = [*rules.charges(decode(rows, Budget), rules.by_scope(costs), now)]
    if not charges:
        return
    batch: Batch = [
        (*each.budget.key, each.budget.began_at, each.budget.ends_at, each.usd_micros, each.tokens) for each in charges
    ]
    tx.write(MONEY.budgets_charge(batch=batch))
    for each in charges:
        if each.passes:
            tx.emit(told("budget.spent", each.budget, SERVER))


def told(kind: str, budget: Budget, actor: str, trace: str | None = None, *, is_removed: bool = False) -> NewEvent:
    """What the log says of a budget. Its subject is what it is for: a task, a type, or the zone itself."""
    data = {
        name: value
        for name, value in msgspec.to_builtins(rules.view(budget)).items()
        if name not in ("createdBy", "createdAt", "updatedAt")
    }
    if is_removed:
        data["removed"] = True
    subject = budget.zone_id if budget.scope is Scope.ZONE else budget.scope_key
    return NewEvent(kind, budget.zone_id, subject, actor, data=msgspec.json.encode(data).decode(), trace=trace)


def _rows(sums: dict[tuple[object, ...], Sum]) -> Batch:
    # In the order of the key, as every batch that adds to these rows.
    return [
        (*key, total.input_tokens, total.output_tokens, total.usd_micros)
        for key, total in ((key, rules.capped(sums[key])) for key in sorted(sums, key=str))
    ]


def _zones(zones: Iterable[str]) -> Batch:
    return [(zone_id,) for zone_id in sorted(zones)]
