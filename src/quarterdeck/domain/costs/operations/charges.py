"""The part of costs that is done in the transactions of tasks: read spent budgets, write costs, charge budgets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVarTuple

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.costs import rules
from quarterdeck.domain.costs.model import Budget, BudgetedTask, Cost, CostSum, Scope
from quarterdeck.domain.costs.queries import Q
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement, chunks

KeyColumns = TypeVarTuple("KeyColumns")
SERVER = "server"
NO_AGENT = ""
"""Stored as the agent of costs that were reported while no agent held the task."""


def spent_budget_statements(zones: Collection[str]) -> list[BoundStatement]:
    """A list with the statement that loads the spent budgets of these zones, or an empty list if there are no zones."""
    return [Q.budgets_spent_of_zones(batch=_zone_rows(zones))] if zones else []


class LoadedSpentBudgets(rules.SpentBudgets):
    @classmethod
    def from_rows(cls, results: Sequence[Sequence[Row]], now: Millis) -> LoadedSpentBudgets:
        return cls(decode([row for rows in results for row in rows], Budget), now)


async def write_costs(tx: Transaction, costs: Sequence[tuple[BudgetedTask, Cost]], now: Millis) -> None:
    """Add costs to `task_costs` and `cost_days`, and charge the budgets. The transaction must have locked the zones."""
    day = rules.day_of(now)
    by_task = defaultdict[tuple[str, str, str, str, int], CostSum](CostSum)
    by_day = defaultdict[tuple[str, int, str, str, str], CostSum](CostSum)
    for task, cost in costs:
        amount = CostSum(cost.usd_micros, cost.input_tokens, cost.output_tokens)
        agent_id = task.agent_id or NO_AGENT
        by_task[task.zone_id, task.id, agent_id, cost.model, day] += amount
        by_day[task.zone_id, day, task.task_type, agent_id, cost.model] += amount
    for task_rows in chunks(_rows(by_task)):
        tx.write(Q.task_costs_add(batch=task_rows))
    for day_rows in chunks(_rows(by_day)):
        tx.write(Q.cost_days_add(batch=day_rows))
    await _charge_budgets(tx, costs, now)


async def _charge_budgets(tx: Transaction, costs: Sequence[tuple[BudgetedTask, Cost]], now: Millis) -> None:
    [rows] = await tx.read(Q.budgets_of_zones(batch=_zone_rows({task.zone_id for task, _ in costs})))
    if not rows:
        return
    charges = [*rules.compute_charges(decode(rows, Budget), rules.sum_by_scope(costs), now)]
    if not charges:
        return
    batch = [
        (*charge.budget.key, charge.budget.began_at, charge.budget.ends_at, charge.usd_micros, charge.tokens)
        for charge in charges
    ]
    tx.write(Q.budgets_charge(batch=batch))
    for charge in charges:
        if charge.is_newly_spent:
            tx.emit(budget_event("budget.spent", charge.budget, SERVER))


def delete_statements(tasks: Sequence[tuple[str, str]]) -> list[BoundStatement]:
    """The statements that delete the costs and budgets of deleted tasks, given as (zone id, task id)."""
    return [Q.task_costs_delete_expired(batch=tasks), Q.task_budgets_delete_expired(batch=tasks)]


def budget_event(
    event_type: str, budget: Budget, actor: str, trace: str | None = None, *, is_removed: bool = False
) -> NewEvent:
    """Build the event about a budget. Its subject is a task id, a task type or a zone id, depending on the scope."""
    data = {
        name: value
        for name, value in msgspec.to_builtins(rules.to_view(budget)).items()
        if name not in ("createdBy", "createdAt", "updatedAt")
    }
    if is_removed:
        data["removed"] = True
    subject = budget.zone_id if budget.scope is Scope.ZONE else budget.scope_key
    return NewEvent(event_type, budget.zone_id, subject, actor, data=msgspec.json.encode(data).decode(), trace=trace)


def _rows(sums: Mapping[tuple[*KeyColumns], CostSum]) -> list[tuple[*KeyColumns, int, int, int]]:
    # All batches write these rows in key order, so that two of them cannot deadlock.
    return [
        (*key, total.input_tokens, total.output_tokens, total.usd_micros)
        for key, total in ((key, rules.cap_sum(sums[key])) for key in sorted(sums, key=str))
    ]


def _zone_rows(zones: Iterable[str]) -> list[tuple[str]]:
    return [(zone_id,) for zone_id in sorted(zones)]
