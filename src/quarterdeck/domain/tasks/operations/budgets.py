"""Sets and removes budgets, and reads budgets and costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.tasks.model.cost_types import (
    BUDGETS_MAX,
    Budget,
    BudgetCommand,
    BudgetKey,
    CostFilter,
    CostGroup,
    CostSum,
    PutBudget,
    RemoveBudget,
    Scope,
)
from quarterdeck.domain.tasks.model.rows import TaskRef
from quarterdeck.domain.tasks.operations.costs import budget_event
from quarterdeck.domain.tasks.queries import COSTS, Q
from quarterdeck.domain.tasks.rules import budgets as rules, errors
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

READ_PERMISSION = "costs.read"
CHANGE_PERMISSION = "budgets.change"
ALL_DAYS = (0, 10**9)
"""(first day, first excluded day), as days since 1970-01-01."""


# -- change ------------------------------------------------------------------------------------------------------


async def change_budgets(
    tx: Transaction, commands: Sequence[PutBudget | RemoveBudget]
) -> list[Budget | Problem | Busy]:
    """Set and remove budgets in order of arrival, with the zones locked. Charges and claims take the same locks."""
    task_refs = sorted({(command.zone_id, command.scope_key) for command in commands if command.scope is Scope.TASK})
    zone_ids = [(zone_id,) for zone_id in sorted({command.zone_id for command in commands})]
    batch, [budget_rows, task_rows] = await access.lock_with_roles(
        tx, commands, COSTS.budgets_of_zones(batch=zone_ids), Q.task_dependency_states(batch=task_refs)
    )
    existing_tasks = {(str(row[0]), str(row[1])) for row in task_rows}
    budget_batch = _BudgetBatch(decode(budget_rows, Budget))
    outcomes: list[Budget | Problem | Busy] = []
    for command in commands:
        problem = (
            batch.permission_problem(command, CHANGE_PERMISSION)
            or batch.ended_zone_problem(command)
            or _missing_task_problem(command, existing_tasks)
        )
        outcomes.append(problem or await budget_batch.decide(tx, command))
    budget_batch.write(tx)
    return outcomes


def _missing_task_problem(command: BudgetCommand, existing_tasks: set[TaskRef]) -> Problem | None:
    """The error if a budget is set for a task that does not exist. It may still be removed."""
    is_missing = command.scope is Scope.TASK and (command.zone_id, command.scope_key) not in existing_tasks
    return errors.task_not_found(command.scope_key) if is_missing and isinstance(command, PutBudget) else None


class _BudgetBatch:
    """The budgets of the batch's zones, with the changes that the batch has made so far."""

    def __init__(self, loaded: Iterable[Budget]) -> None:
        self._budgets: dict[BudgetKey, Budget] = {budget.key: budget for budget in loaded}
        self._put_keys: set[BudgetKey] = set()
        self._removed_keys: set[BudgetKey] = set()

    async def decide(self, tx: Transaction, command: PutBudget | RemoveBudget) -> Budget | Problem:
        existing = self._budgets.get(command.key)
        if isinstance(command, RemoveBudget):
            if existing is None:
                return rules.budget_not_found(command.scope, command.period)
            return self._remove(tx, command, rules.roll_over(existing, tx.now))
        if existing is None and sum(1 for key in self._budgets if key[0] == command.zone_id) >= BUDGETS_MAX:
            return rules.too_many_budgets()
        used = CostSum() if existing is not None else await _load_used_costs(tx, command)
        budget = rules.put_budget(command, existing, used, tx.now)
        tx.emit(budget_event("budget.changed", budget, command.caller.subject, command.trace))
        if rules.is_spent(budget) and not (existing is not None and rules.is_spent(rules.roll_over(existing, tx.now))):
            tx.emit(budget_event("budget.spent", budget, command.caller.subject, command.trace))
        self._budgets[command.key] = budget
        self._put_keys.add(command.key)
        self._removed_keys.discard(command.key)
        return budget

    def _remove(self, tx: Transaction, command: RemoveBudget, budget: Budget) -> Budget:
        del self._budgets[command.key]
        self._put_keys.discard(command.key)
        self._removed_keys.add(command.key)
        tx.emit(budget_event("budget.changed", budget, command.caller.subject, command.trace, is_removed=True))
        return budget

    def write(self, tx: Transaction) -> None:
        if self._removed_keys:
            tx.write(COSTS.budgets_remove(batch=sorted(self._removed_keys)))
        if self._put_keys:
            tx.write(
                COSTS.budgets_set(batch=[msgspec.structs.astuple(self._budgets[key]) for key in sorted(self._put_keys)])
            )


async def _load_used_costs(tx: Transaction, command: PutBudget) -> CostSum:
    """Load the costs that were reported in the current period before the budget existed."""
    period_start, _ = rules.period_bounds(command.period, tx.now)
    since = rules.day_of(period_start)
    if command.scope is Scope.TASK:
        statement = COSTS.costs_of_task_since(zone_id=command.zone_id, task_id=command.scope_key, since=since)
    else:
        task_type = command.scope_key if command.scope is Scope.TASK_TYPE else None
        statement = COSTS.costs_since(zone_id=command.zone_id, task_type=task_type, since=since)
    [[row]] = await tx.read(statement)
    return rules.cap_sum(CostSum(*(int(str(number)) for number in row)))


# -- read --------------------------------------------------------------------------------------------------------


async def list_budgets(
    tx: Transaction, caller: Caller, zone_id: str, after: tuple[str, str, str], limit: int
) -> list[Budget]:
    await access.require_permission(tx, caller, zone_id, READ_PERMISSION)
    scope, scope_key, period = after
    [rows] = await tx.read(
        COSTS.budgets_page(zone_id=zone_id, scope=scope, scope_key=scope_key, period=period, limit=limit)
    )
    if not rows:
        await zones.require_zone(tx, zone_id)
    return [rules.roll_over(budget, tx.now) for budget in decode(rows, Budget)]


async def read_costs(tx: Transaction, filters: CostFilter) -> list[CostGroup]:
    await access.require_permission(tx, filters.caller, filters.zone_id, READ_PERMISSION)
    [rows] = await tx.read(_costs_statement(filters))
    if not rows:
        await zones.require_zone(tx, filters.zone_id)
    # PostgreSQL returns sums of bigint as numeric. They are whole numbers.
    groups = [CostGroup(str(key), *(int(str(number)) for number in sums)) for key, *sums in rows]
    if filters.group_by != "day":
        return groups
    return [msgspec.structs.replace(group, key=rules.format_day(int(group.key))) for group in groups]


def _costs_statement(filters: CostFilter) -> BoundStatement:
    first, end = ALL_DAYS
    since = first if filters.since_day is None else filters.since_day
    until = end if filters.until_day is None else filters.until_day
    zone_id, after, limit = filters.zone_id, filters.after, filters.limit
    if filters.group_by == "day":
        day = first - 1 if after is None else rules.parse_day(after, "cursor")
        return COSTS.costs_by_day(zone_id=zone_id, since=since, until=until, after=day, limit=limit)
    if filters.group_by == "task":
        return COSTS.costs_by_task(zone_id=zone_id, since=since, until=until, after=after, limit=limit)
    group_by = filters.group_by
    return COSTS.costs_grouped(zone_id=zone_id, grouped_by=group_by, since=since, until=until, after=after, limit=limit)
