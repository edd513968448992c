"""Budgets: which budgets apply to a task, when a budget is spent, and sums of costs.

A budget limits the costs of a zone, a task type or a single task per calendar period in UTC. It is spent when the costs
of the period reach one of its limits, in dollars or in tokens; a budget with limit 0 is spent from the start. No job
resets a budget when its period ends: the current period is computed from the current time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec

from quarterdeck.core.clock import DAY, SECOND, Millis, iso, iso_or_none
from quarterdeck.core.errors import Invalid, LimitReached, NotFound
from quarterdeck.domain.costs.model import (
    BUDGETS_MAX,
    MICROS_PER_USD,
    Budget,
    BudgetedTask,
    BudgetView,
    Charge,
    Cost,
    CostSum,
    Period,
    PutBudget,
    Scope,
    SpentBudgetView,
)

SUM_MAX = 2**53
"""Many JSON parsers round larger integers, so sums stop growing here."""
SPENT_CODE = "budget_spent"
_EPOCH = date(1970, 1, 1)
_replace = msgspec.structs.replace
ScopeRef = tuple[str, str, str]
"""(zone id, scope, key)"""


# -- calendar ----------------------------------------------------------------------------------------------------


def day_of(instant: Millis) -> int:
    return instant // DAY


def parse_day(text: str, field: str) -> int:
    """2026-01-31 → days since 1970"""
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise Invalid("invalid_query", f"{text!r} is not a date. Use YYYY-MM-DD.", field=field) from None


def is_day(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def format_day(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).isoformat()


def period_bounds(period: Period, now: Millis) -> tuple[Millis, Millis | None]:
    """Start and end of the current period. Weeks start on Monday."""
    if period is Period.TOTAL:
        return 0, None
    today = datetime.fromtimestamp(now // SECOND, UTC).date()
    if period is Period.DAY:
        start, end = today, today + timedelta(days=1)
    elif period is Period.WEEK:
        start = today - timedelta(days=today.weekday())
        end = start + timedelta(days=7)
    else:
        start = today.replace(day=1)
        end = (start + timedelta(days=31)).replace(day=1)
    return _midnight(start), _midnight(end)


def _midnight(day: date) -> Millis:
    return (day - _EPOCH).days * DAY


# -- budgets -----------------------------------------------------------------------------------------------------


def scopes_of(task: BudgetedTask) -> tuple[ScopeRef, ...]:
    """The scopes of the budgets that apply to the task."""
    return (
        (task.zone_id, Scope.ZONE, ""),
        (task.zone_id, Scope.TASK_TYPE, task.task_type),
        (task.zone_id, Scope.TASK, task.id),
    )


def roll_over(budget: Budget, now: Millis) -> Budget:
    """The budget in its current period. Its sums are reset if a new period has begun. If the clock was set back, the
    budget stays in its stored period."""
    period_start, period_end = period_bounds(budget.period, now)
    if period_start <= budget.began_at:
        return budget
    return _replace(budget, began_at=period_start, ends_at=period_end, spent_usd_micros=0, spent_tokens=0)


def is_spent(budget: Budget) -> bool:
    """Whether the budget has reached a limit. Call `roll_over` first, so that the budget is in its current period."""
    return (budget.usd_micros is not None and budget.spent_usd_micros >= budget.usd_micros) or (
        budget.tokens is not None and budget.spent_tokens >= budget.tokens
    )


class SpentBudgets:
    """The budgets that are spent at the time `now`. If a scope has several, only the one that ends last is kept."""

    def __init__(self, budgets: Iterable[Budget], now: Millis) -> None:
        self._spent: dict[ScopeRef, Budget] = {}
        for loaded in budgets:
            budget = roll_over(loaded, now)
            if is_spent(budget):
                ref = (budget.zone_id, str(budget.scope), budget.scope_key)
                self._spent[ref] = _later_ending(self._spent.get(ref), budget)

    def __bool__(self) -> bool:
        return bool(self._spent)

    def is_spent_for(self, task: BudgetedTask) -> bool:
        """Whether a spent budget keeps the task from being claimed."""
        return bool(self._spent) and any(ref in self._spent for ref in scopes_of(task))

    def is_spent_for_type(self, zone_id: str, task_type: str) -> bool:
        """Whether a spent budget blocks all tasks of the type, so that none of them needs to be loaded."""
        return (zone_id, Scope.ZONE, "") in self._spent or (zone_id, Scope.TASK_TYPE, task_type) in self._spent

    def count_spent_tasks(self, zone_id: str) -> int:
        """The number of tasks in a zone whose own budget is spent. A claim may have to skip that many tasks."""
        return sum(1 for zone, scope, _ in self._spent if zone == zone_id and scope == Scope.TASK)

    def blocking_budget(self, task: BudgetedTask) -> SpentBudgetView | None:
        spent = [budget for ref in scopes_of(task) if (budget := self._spent.get(ref)) is not None]
        # The budget whose period ends last blocks the task for the longest time.
        return to_spent_view(max(spent, key=_ends_at)) if spent else None


def _later_ending(one: Budget | None, other: Budget) -> Budget:
    return other if one is None or _ends_at(other) > _ends_at(one) else one


def _ends_at(budget: Budget) -> float:
    return float("inf") if budget.ends_at is None else budget.ends_at


# -- charges -----------------------------------------------------------------------------------------------------


def cap_sum(total: CostSum) -> CostSum:
    return CostSum(min(total.usd_micros, SUM_MAX), min(total.input_tokens, SUM_MAX), min(total.output_tokens, SUM_MAX))


def sum_by_scope(costs: Sequence[tuple[BudgetedTask, Cost]]) -> dict[ScopeRef, CostSum]:
    sums: dict[ScopeRef, CostSum] = {}
    for task, cost in costs:
        for ref in scopes_of(task):
            sums[ref] = sums.get(ref, CostSum()) + CostSum(cost.usd_micros, cost.input_tokens, cost.output_tokens)
    return {ref: cap_sum(total) for ref, total in sums.items()}


def compute_charges(budgets: Iterable[Budget], sums: Mapping[ScopeRef, CostSum], now: Millis) -> Iterator[Charge]:
    """One charge for each budget that some of the costs count against."""
    for budget in budgets:
        total = sums.get((budget.zone_id, budget.scope, budget.scope_key))
        if total is None:
            continue
        before = roll_over(budget, now)
        after = _replace(
            before,
            spent_usd_micros=before.spent_usd_micros + total.usd_micros,
            spent_tokens=before.spent_tokens + min(total.tokens, SUM_MAX),
        )
        is_newly_spent = is_spent(after) and not is_spent(before)
        yield Charge(after, total.usd_micros, min(total.tokens, SUM_MAX), is_newly_spent)


# -- changes by users --------------------------------------------------------------------------------------------


def put_budget(command: PutBudget, existing: Budget | None, used: CostSum, now: Millis) -> Budget:
    """The new or changed budget. A new budget starts with the costs of its current period so far (`used`). A changed
    budget keeps its sums."""
    if existing is not None:
        return _replace(roll_over(existing, now), usd_micros=command.usd_micros, tokens=command.tokens, updated_at=now)
    period_start, period_end = period_bounds(command.period, now)
    return Budget(
        zone_id=command.zone_id,
        scope=command.scope,
        scope_key=command.scope_key,
        period=command.period,
        usd_micros=command.usd_micros,
        tokens=command.tokens,
        began_at=period_start,
        ends_at=period_end,
        spent_usd_micros=used.usd_micros,
        spent_tokens=used.tokens,
        created_by=command.caller.subject,
        created_at=now,
        updated_at=now,
    )


def too_many_budgets() -> LimitReached:
    return LimitReached(
        "too_many_budgets",
        f"The workspace has {BUDGETS_MAX} of {BUDGETS_MAX} budgets. Remove one first.",
        bound="budgets",
        limit=BUDGETS_MAX,
        used=BUDGETS_MAX,
        frees="removing one",
    )


def task_not_found(task_id: str) -> NotFound:
    return NotFound("task_not_found", f"Task {task_id!r} does not exist in this zone.")


def budget_not_found(scope: Scope, period: Period) -> NotFound:
    return NotFound("budget_not_found", f"No budget with scope {scope} and period {period} exists for this key.")


# -- views -------------------------------------------------------------------------------------------------------


def to_view(budget: Budget) -> BudgetView:
    return BudgetView(
        scope=budget.scope,
        key=budget.scope_key or None,
        period=budget.period,
        usd=_dollars_or_none(budget.usd_micros),
        tokens=budget.tokens,
        used_usd=to_dollars(budget.spent_usd_micros),
        used_tokens=budget.spent_tokens,
        is_spent=is_spent(budget),
        period_began_at=iso(budget.began_at),
        period_ends_at=iso_or_none(budget.ends_at),
        created_by=budget.created_by,
        created_at=iso(budget.created_at),
        updated_at=iso(budget.updated_at),
    )


def to_spent_view(budget: Budget) -> SpentBudgetView:
    return SpentBudgetView(
        code=SPENT_CODE,
        detail=describe_spent(budget),
        scope=budget.scope,
        key=budget.scope_key or None,
        period=budget.period,
        usd=_dollars_or_none(budget.usd_micros),
        used_usd=to_dollars(budget.spent_usd_micros),
        tokens=budget.tokens,
        used_tokens=budget.spent_tokens,
        period_ends_at=iso_or_none(budget.ends_at),
    )


def describe_spent(budget: Budget) -> str:
    owner = {
        Scope.ZONE: "of the workspace",
        Scope.TASK_TYPE: f"of tasks of type {budget.scope_key!r}",
        Scope.TASK: "of this task",
    }[budget.scope]
    amounts = []
    if budget.usd_micros is not None and budget.spent_usd_micros >= budget.usd_micros:
        amounts.append(f"{to_dollars(budget.spent_usd_micros):g} of {to_dollars(budget.usd_micros):g} dollars")
    if budget.tokens is not None and budget.spent_tokens >= budget.tokens:
        amounts.append(f"{budget.spent_tokens} of {budget.tokens} tokens")
    renewal = "" if budget.ends_at is None else f"; it resets at {iso(budget.ends_at)}"
    period_text = "in total" if budget.period is Period.TOTAL else f"for this {budget.period}"
    return f"The budget {owner} is spent {period_text}: {' and '.join(amounts)}{renewal}."


def to_dollars(micros: int) -> float:
    return micros / MICROS_PER_USD


def _dollars_or_none(micros: int | None) -> float | None:
    return None if micros is None else to_dollars(micros)
