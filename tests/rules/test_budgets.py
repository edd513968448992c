"""Budgets: what their periods are, when they are spent, and what a batch of costs does to them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import Invalid
from quarterdeck.domain.tasks.model.commands import Cost
from quarterdeck.domain.tasks.model.cost_types import Budget, CostSum, Period, PutBudget, Scope
from quarterdeck.domain.tasks.rules import budgets
from quarterdeck.domain.tasks.rules.budgets import SUM_MAX, SpentBudgets
from tests.support.builders import ZONE, caller
from tests.support.task_rules import task_row

TASK = task_row(task_id="t")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOON = at("2026-03-18T12:00:00")
"""A Wednesday."""


def budget(period: Period = Period.DAY, now: int = NOON, **changed: object) -> Budget:
    began, ends = budgets.period_bounds(period, now)
    plain = Budget(ZONE, Scope.ZONE, "", period, 1_000, None, began, ends, 0, 0, "tester", 1, 1)
    return msgspec.structs.replace(plain, **changed)


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
def test_periods_are_those_of_the_calendar(period: Period, began: str, ends: str) -> None:
    assert budgets.period_bounds(period, NOON) == (at(began), at(ends))


@pytest.mark.parametrize("month", range(1, 13))
def test_every_month_ends_where_the_next_begins(month: int) -> None:
    _, ends = budgets.period_bounds(Period.MONTH, at(f"2028-{month:02d}-28T23:59:59"))
    following = f"2028-{month + 1:02d}-01" if month < 12 else "2029-01-01"
    assert ends == at(following)


def test_a_total_never_ends() -> None:
    assert budgets.period_bounds(Period.TOTAL, NOON) == (0, None)


def test_a_day_is_found_by_its_name_and_named_again() -> None:
    assert budgets.format_day(budgets.parse_day("2026-03-18", "since")) == "2026-03-18"
    assert budgets.parse_day("2026-03-18", "since") == budgets.day_of(NOON)
    with pytest.raises(Invalid):
        budgets.parse_day("2026-02-30", "since")


def test_a_budget_is_spent_when_either_of_its_limits_is_reached_and_not_before() -> None:
    both = budget(usd_micros=1_000, tokens=50)
    assert not budgets.is_spent(msgspec.structs.replace(both, spent_usd_micros=999, spent_tokens=49))
    assert budgets.is_spent(msgspec.structs.replace(both, spent_usd_micros=1_000))
    assert budgets.is_spent(msgspec.structs.replace(both, spent_tokens=50))
    assert not budgets.is_spent(budget(usd_micros=None, tokens=50, spent_usd_micros=10**9))


def test_a_budget_of_nothing_is_spent_from_the_beginning_and_in_every_period() -> None:
    nothing = budget(usd_micros=0)
    assert SpentBudgets([nothing], NOON).is_spent_for(TASK)
    assert SpentBudgets([nothing], NOON + 30 * DAY).is_spent_for(TASK)


def test_a_new_period_begins_with_nothing_spent() -> None:
    spent = budget(spent_usd_micros=5_000)
    assert SpentBudgets([spent], NOON).is_spent_for(TASK)
    tomorrow = budgets.roll_over(spent, NOON + DAY)
    assert (tomorrow.spent_usd_micros, tomorrow.began_at) == (0, spent.ends_at)
    assert not SpentBudgets([spent], NOON + DAY).is_spent_for(TASK)


def test_a_clock_that_steps_back_opens_no_budget() -> None:
    spent = budget(spent_usd_micros=5_000)
    assert budgets.roll_over(spent, NOON - DAY) == spent


@pytest.mark.parametrize(
    ("scope", "key", "holds"),
    [
        (Scope.ZONE, "", True),
        (Scope.TASK_TYPE, "development", True),
        (Scope.TASK_TYPE, "research", False),
        (Scope.TASK, "t", True),
        (Scope.TASK, "u", False),
    ],
)
def test_a_task_waits_for_the_budgets_it_draws_on_and_no_others(scope: Scope, key: str, holds: bool) -> None:
    closed = SpentBudgets([budget(scope=scope, scope_key=key, spent_usd_micros=1_000)], NOON)
    assert closed.is_spent_for(TASK) is holds
    assert (closed.blocking_budget(TASK) is not None) is holds
    assert not closed.is_spent_for(task_row(task_id="t", zone_id="elsewhere"))


def test_whole_types_are_known_to_wait_without_looking_at_a_task() -> None:
    of_type = budget(scope=Scope.TASK_TYPE, scope_key="development", spent_usd_micros=1_000)
    of_task = budget(scope=Scope.TASK, scope_key="t", spent_usd_micros=1_000)
    closed = SpentBudgets([of_type, of_task], NOON)
    assert closed.is_spent_for_type(ZONE, "development")
    assert not closed.is_spent_for_type(ZONE, "research")
    assert (closed.count_spent_tasks(ZONE), closed.count_spent_tasks("elsewhere")) == (1, 0)
    assert SpentBudgets([budget(spent_usd_micros=1_000)], NOON).is_spent_for_type(ZONE, "research")


def test_what_holds_a_task_up_longest_is_what_is_told() -> None:
    day = budget(Period.DAY, spent_usd_micros=1_000)
    month = budget(Period.MONTH, scope=Scope.TASK, scope_key="t", spent_usd_micros=2_000)
    told = SpentBudgets([day, month], NOON).blocking_budget(TASK)
    assert told is not None
    assert (told.code, told.scope, told.key, told.period) == ("budget_spent", "task", "t", "month")
    assert (told.usd, told.used_usd, told.period_ends_at) == (0.001, 0.002, "2026-04-01T00:00:00.000Z")
    assert "2026-04-01" in told.detail
    assert "0.002 of 0.001 dollars" in told.detail


def test_costs_are_charged_to_every_budget_they_draw_on_and_pass_a_limit_once() -> None:
    zone = budget(spent_usd_micros=400)
    of_task = budget(Period.TOTAL, scope=Scope.TASK, scope_key="t", usd_micros=None, tokens=10)
    other = budget(scope=Scope.TASK, scope_key="u")
    sums = budgets.sum_by_scope([(TASK, cost(500, 3)), (TASK, cost(200, 4))])
    first, second = budgets.compute_charges([zone, of_task, other], sums, NOON)
    assert (first.usd_micros, first.tokens, first.is_newly_spent) == (700, 7, True)
    assert (first.budget.spent_usd_micros, second.budget.spent_tokens) == (1_100, 7)
    assert not second.is_newly_spent
    [again] = budgets.compute_charges([first.budget], budgets.sum_by_scope([(TASK, cost(1))]), NOON)
    assert not again.is_newly_spent


def test_a_charge_in_a_new_period_counts_from_nothing() -> None:
    old = budget(spent_usd_micros=5_000)
    [charge] = budgets.compute_charges([old], budgets.sum_by_scope([(TASK, cost(10))]), NOON + DAY)
    assert charge.budget.spent_usd_micros == 10
    assert charge.budget.began_at == old.ends_at
    assert not charge.is_newly_spent


def test_sums_stop_where_numbers_would_be_rounded() -> None:
    sums = budgets.sum_by_scope([(TASK, cost(SUM_MAX, SUM_MAX)), (TASK, cost(SUM_MAX, SUM_MAX))])
    assert {(each.usd_micros, each.input_tokens) for each in sums.values()} == {(SUM_MAX, SUM_MAX)}


def test_a_budget_that_is_changed_goes_on_counting_and_a_new_one_counts_what_was_before() -> None:
    ask = PutBudget(
        zone_id=ZONE, caller=caller(), trace=None, scope=Scope.ZONE, scope_key="", period=Period.DAY,
        usd_micros=7_000, tokens=None,
    )  # fmt: skip
    made = budgets.put_budget(ask, None, CostSum(300, 2, 3), NOON)
    assert (made.usd_micros, made.spent_usd_micros, made.spent_tokens) == (7_000, 300, 5)
    changed = budgets.put_budget(ask, budget(spent_usd_micros=999), CostSum(), NOON)
    assert (changed.usd_micros, changed.spent_usd_micros) == (7_000, 999)
    renewed = budgets.put_budget(ask, budget(spent_usd_micros=999), CostSum(), NOON + DAY)
    assert renewed.spent_usd_micros == 0
