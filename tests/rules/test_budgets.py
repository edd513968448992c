"""Rules of budgets: periods, limits, and the charges of a batch of costs."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import Invalid
from quarterdeck.domain.costs import rules
from quarterdeck.domain.costs.model import Budget, Cost, CostSum, Period, PutBudget, Scope
from quarterdeck.domain.costs.rules import SUM_MAX, SpentBudgets
from tests.support.builders import ZONE, caller
from tests.support.task_rules import task_row

TASK = task_row(task_id="t")


def millis(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOON = millis("2026-03-18T12:00:00")
"""A Wednesday."""


def budget(period: Period = Period.DAY, now: int = NOON, **changes: object) -> Budget:
    began, ends = rules.period_bounds(period, now)
    defaults = Budget(ZONE, Scope.ZONE, "", period, 1_000, None, began, ends, 0, 0, "tester", 1, 1)
    return msgspec.structs.replace(defaults, **changes)


def cost(usd_micros: int = 0, tokens: int = 0) -> Cost:
    return Cost("model", tokens, 0, usd_micros)


@pytest.mark.parametrize(
    ("period", "began", "ends"),
    [
        (Period.DAY, "2026-03-18", "2026-03-19"),
        (Period.WEEK, "2026-03-16", "2026-03-23"),
        (Period.MONTH, "2026-03-01", "2026-04-01"),
    ],
)
def test_periods_are_calendar_periods_in_utc(period: Period, began: str, ends: str) -> None:
    assert rules.period_bounds(period, NOON) == (millis(began), millis(ends))


@pytest.mark.parametrize("month", range(1, 13))
def test_every_month_ends_where_the_next_begins(month: int) -> None:
    _, ends = rules.period_bounds(Period.MONTH, millis(f"2028-{month:02d}-28T23:59:59"))
    following = f"2028-{month + 1:02d}-01" if month < 12 else "2029-01-01"
    assert ends == millis(following)


def test_total_period_has_no_end() -> None:
    assert rules.period_bounds(Period.TOTAL, NOON) == (0, None)


def test_day_round_trips_through_its_text_and_invalid_days_are_refused() -> None:
    assert rules.format_day(rules.parse_day("2026-03-18", "since")) == "2026-03-18"
    assert rules.parse_day("2026-03-18", "since") == rules.day_of(NOON)
    with pytest.raises(Invalid):
        rules.parse_day("2026-02-30", "since")


def test_budget_is_spent_when_either_limit_is_reached() -> None:
    two_limits = budget(usd_micros=1_000, tokens=50)
    assert not rules.is_spent(msgspec.structs.replace(two_limits, spent_usd_micros=999, spent_tokens=49))
    assert rules.is_spent(msgspec.structs.replace(two_limits, spent_usd_micros=1_000))
    assert rules.is_spent(msgspec.structs.replace(two_limits, spent_tokens=50))
    assert not rules.is_spent(budget(usd_micros=None, tokens=50, spent_usd_micros=10**9))


def test_budget_of_zero_is_always_spent() -> None:
    zero_budget = budget(usd_micros=0)
    assert SpentBudgets([zero_budget], NOON).is_spent_for(TASK)
    assert SpentBudgets([zero_budget], NOON + 30 * DAY).is_spent_for(TASK)


def test_new_period_starts_with_nothing_spent() -> None:
    spent = budget(spent_usd_micros=5_000)
    assert SpentBudgets([spent], NOON).is_spent_for(TASK)
    next_day = rules.roll_over(spent, NOON + DAY)
    assert (next_day.spent_usd_micros, next_day.began_at) == (0, spent.ends_at)
    assert not SpentBudgets([spent], NOON + DAY).is_spent_for(TASK)


def test_clock_stepping_back_does_not_reset_a_spent_budget() -> None:
    spent = budget(spent_usd_micros=5_000)
    assert rules.roll_over(spent, NOON - DAY) == spent


@pytest.mark.parametrize(
    ("scope", "key", "is_blocking"),
    [
        (Scope.ZONE, "", True),
        (Scope.TASK_TYPE, "development", True),
        (Scope.TASK_TYPE, "research", False),
        (Scope.TASK, "t", True),
        (Scope.TASK, "u", False),
    ],
)
def test_task_is_blocked_only_by_spent_budgets_of_its_scopes(scope: Scope, key: str, is_blocking: bool) -> None:
    spent = SpentBudgets([budget(scope=scope, scope_key=key, spent_usd_micros=1_000)], NOON)
    assert spent.is_spent_for(TASK) is is_blocking
    assert (spent.blocking_budget(TASK) is not None) is is_blocking
    assert not spent.is_spent_for(task_row(task_id="t", zone_id="other-zone"))


def test_spent_budget_of_a_type_blocks_the_type_and_a_task_budget_does_not() -> None:
    type_budget = budget(scope=Scope.TASK_TYPE, scope_key="development", spent_usd_micros=1_000)
    task_budget = budget(scope=Scope.TASK, scope_key="t", spent_usd_micros=1_000)
    spent = SpentBudgets([type_budget, task_budget], NOON)
    assert spent.is_spent_for_type(ZONE, "development")
    assert not spent.is_spent_for_type(ZONE, "research")
    assert (spent.count_spent_tasks(ZONE), spent.count_spent_tasks("other-zone")) == (1, 0)
    assert SpentBudgets([budget(spent_usd_micros=1_000)], NOON).is_spent_for_type(ZONE, "research")


def test_blocking_budget_is_the_one_whose_period_ends_last() -> None:
    day_budget = budget(Period.DAY, spent_usd_micros=1_000)
    month_budget = budget(Period.MONTH, scope=Scope.TASK, scope_key="t", spent_usd_micros=2_000)
    blocking = SpentBudgets([day_budget, month_budget], NOON).blocking_budget(TASK)
    assert blocking is not None
    assert (blocking.code, blocking.scope, blocking.key, blocking.period) == ("budget_spent", "task", "t", "month")
    assert (blocking.usd, blocking.used_usd, blocking.period_ends_at) == (0.001, 0.002, "2026-04-01T00:00:00.000Z")
    assert "2026-04-01" in blocking.detail
    assert "0.002 of 0.001 dollars" in blocking.detail


def test_costs_are_charged_to_every_matching_budget_and_reach_a_limit_once() -> None:
    zone_budget = budget(spent_usd_micros=400)
    task_budget = budget(Period.TOTAL, scope=Scope.TASK, scope_key="t", usd_micros=None, tokens=10)
    other_budget = budget(scope=Scope.TASK, scope_key="u")
    sums = rules.sum_by_scope([(TASK, cost(500, 3)), (TASK, cost(200, 4))])
    first, second = rules.compute_charges([zone_budget, task_budget, other_budget], sums, NOON)
    assert (first.usd_micros, first.tokens, first.is_newly_spent) == (700, 7, True)
    assert (first.budget.spent_usd_micros, second.budget.spent_tokens) == (1_100, 7)
    assert not second.is_newly_spent
    [again] = rules.compute_charges([first.budget], rules.sum_by_scope([(TASK, cost(1))]), NOON)
    assert not again.is_newly_spent


def test_charge_in_a_new_period_starts_from_zero() -> None:
    old = budget(spent_usd_micros=5_000)
    [charge] = rules.compute_charges([old], rules.sum_by_scope([(TASK, cost(10))]), NOON + DAY)
    assert charge.budget.spent_usd_micros == 10
    assert charge.budget.began_at == old.ends_at
    assert not charge.is_newly_spent


def test_sums_are_capped_at_sum_max() -> None:
    sums = rules.sum_by_scope([(TASK, cost(SUM_MAX, SUM_MAX)), (TASK, cost(SUM_MAX, SUM_MAX))])
    assert {(total.usd_micros, total.input_tokens) for total in sums.values()} == {(SUM_MAX, SUM_MAX)}


def test_changed_budget_keeps_its_spending_and_a_new_one_starts_with_past_costs() -> None:
    command = PutBudget(
        zone_id=ZONE, caller=caller(), trace=None, scope=Scope.ZONE, scope_key="", period=Period.DAY,
        usd_micros=7_000, tokens=None,
    )  # fmt: skip
    created = rules.put_budget(command, None, CostSum(300, 2, 3), NOON)
    assert (created.usd_micros, created.spent_usd_micros, created.spent_tokens) == (7_000, 300, 5)
    changed = rules.put_budget(command, budget(spent_usd_micros=999), CostSum(), NOON)
    assert (changed.usd_micros, changed.spent_usd_micros) == (7_000, 999)
    renewed = rules.put_budget(command, budget(spent_usd_micros=999), CostSum(), NOON + DAY)
    assert renewed.spent_usd_micros == 0
