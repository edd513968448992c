"""Sets and removes budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.costs import rules
from quarterdeck.domain.costs.model import (
    BUDGETS_MAX,
    Budget,
    BudgetCommand,
    BudgetKey,
    CostSum,
    PutBudget,
    RemoveBudget,
    Scope,
)
from quarterdeck.domain.costs.operations.charges import budget_event
from quarterdeck.domain.costs.queries import Q
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

CHANGE_PERMISSION = "budgets.change"
TaskStatesStatement = Callable[[Sequence[tuple[str, str]]], BoundStatement]
"""Tasks, as (zone id, task id) → the statement whose rows begin with these ids for each task that exists"""


class BudgetWriter:
    """Runs the batches of the budget lane."""

    def __init__(self, task_states_statement: TaskStatesStatement) -> None:
        self._task_states_statement = task_states_statement

    async def change(
        self, tx: Transaction, commands: Sequence[PutBudget | RemoveBudget]
    ) -> list[Budget | Problem | Busy]:
        """Set and remove budgets in order of arrival, with the zones locked. Charges and claims take the same locks."""
        task_refs = sorted(
            {(command.zone_id, command.scope_key) for command in commands if command.scope is Scope.TASK}
        )
        zone_ids = [(zone_id,) for zone_id in sorted({command.zone_id for command in commands})]
        batch, [budget_rows, task_rows] = await access.lock_with_roles(
            tx, commands, Q.budgets_of_zones(batch=zone_ids), self._task_states_statement(task_refs)
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


def _missing_task_problem(command: BudgetCommand, existing_tasks: set[tuple[str, str]]) -> Problem | None:
    """The error if a budget is set for a task that does not exist. It may still be removed."""
    is_missing = command.scope is Scope.TASK and (command.zone_id, command.scope_key) not in existing_tasks
    return rules.task_not_found(command.scope_key) if is_missing and isinstance(command, PutBudget) else None


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
            tx.write(Q.budgets_remove(batch=sorted(self._removed_keys)))
        if self._put_keys:
            tx.write(
                Q.budgets_set(batch=[msgspec.structs.astuple(self._budgets[key]) for key in sorted(self._put_keys)])
            )


async def _load_used_costs(tx: Transaction, command: PutBudget) -> CostSum:
    """Load the costs that were reported in the current period before the budget existed."""
    period_start, _ = rules.period_bounds(command.period, tx.now)
    since = rules.day_of(period_start)
    if command.scope is Scope.TASK:
        statement = Q.costs_of_task_since(zone_id=command.zone_id, task_id=command.scope_key, since=since)
    else:
        task_type = command.scope_key if command.scope is Scope.TASK_TYPE else None
        statement = Q.costs_since(zone_id=command.zone_id, task_type=task_type, since=since)
    [[row]] = await tx.read(statement)
    return rules.cap_sum(CostSum(*(int(str(number)) for number in row)))
