"""Costs and budgets, on both engines: what is spent is counted once, and a spent budget holds tasks up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec
import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Cost
from quarterdeck.domain.tasks.model.cost_types import BUDGETS_MAX, Period, Scope
from quarterdeck.domain.tasks.rules import budgets as rules
from quarterdeck.domain.tasks.sweeps import delete_expired
from tests.support.builders import ZONE, caller
from tests.support.runtime import RuntimeHarness
from tests.support.task_details import TaskDetailHarness
from tests.support.tasks import TaskHarness

CENT = Cost("opus", 100, 20, 10_000)


@pytest.fixture
async def detail_harness(runtime: RuntimeHarness) -> TaskDetailHarness:
    work = TaskHarness(runtime)
    await work.register_agent()
    return TaskDetailHarness(work)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


async def told(keel: RuntimeHarness, kind: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(event.data) for event in await keel.read_log() if event.type == kind]


async def test_what_is_said_is_summed_by_task_agent_model_type_day_and_zone(detail_harness: TaskDetailHarness) -> None:
    work = detail_harness.task_harness
    await work.register_agent("b")
    first, second = [await work.create(name, task_type=name) for name in ("x", "y")]
    [a] = await work.claim("a", task_types=frozenset({"x"}))
    [b] = await work.claim("b", task_types=frozenset({"y"}))
    await detail_harness.report_costs(a.task, CENT, Cost("haiku", 1, 2, 3))
    await detail_harness.report_costs(a.task, CENT)
    await detail_harness.complete_with_costs(b.task, CENT)
    sums = {each.key: each for each in await detail_harness.read_costs("task")}
    assert {key: each.usd_micros for key, each in sums.items()} == {first.id: 20_003, second.id: 10_000}
    assert (sums["x"].input_tokens, sums["x"].output_tokens) == (201, 42)
    assert [(s.key, s.usd_micros) for s in await detail_harness.read_costs("agent")] == [("a", 20_003), ("b", 10_000)]
    assert [(s.key, s.usd_micros) for s in await detail_harness.read_costs("model")] == [("haiku", 3), ("opus", 30_000)]
    assert [(s.key, s.usd_micros) for s in await detail_harness.read_costs("taskType")] == [
        ("x", 20_003),
        ("y", 10_000),
    ]
    [whole] = await detail_harness.read_costs("workspace")
    assert (whole.key, whole.usd_micros) == (ZONE, 30_003)
    [day] = await detail_harness.read_costs("day")
    assert day.usd_micros == 30_003
    shown = (await work.read("x")).task
    assert (shown.usd_micros, shown.input_tokens, shown.output_tokens) == (20_003, 201, 42)


async def test_costs_are_found_by_days_and_page_by_page(detail_harness: TaskDetailHarness) -> None:
    work = detail_harness.task_harness
    await work.create_many([work.create_command(f"t{n}") for n in range(5)])
    for leased in await work.claim(limit=5):
        await detail_harness.complete_with_costs(leased.task, CENT)
    detail_harness.runtime.database.execute("update task_costs set day = day - 2 where task_id in ('t0', 't1')")
    today = rules.parse_day((await detail_harness.read_costs("day"))[0].key, "since")
    assert [s.key for s in await detail_harness.read_costs("task", since=today)] == ["t2", "t3", "t4"]
    assert [s.key for s in await detail_harness.read_costs("task", until=today)] == ["t0", "t1"]
    assert [s.key for s in await detail_harness.read_costs("task", limit=2)] == ["t0", "t1"]
    assert [s.key for s in await detail_harness.read_costs("task", limit=2, after="t1")] == ["t2", "t3"]
    assert await detail_harness.read_costs("day", until=today) == []
    assert await detail_harness.read_costs("workspace", until=today) == []


async def test_what_is_charged_is_told_of_so_that_a_lost_commit_is_not_charged_again(
    detail_harness: TaskDetailHarness,
) -> None:
    await detail_harness.task_harness.create("t")
    [leased] = await detail_harness.task_harness.claim()
    before = len(await detail_harness.runtime.read_log())
    await detail_harness.report_costs(leased.task, CENT)
    assert [event.type for event in (await detail_harness.runtime.read_log())[before:]] == ["task.progressed"]


async def test_progress_whose_answer_was_lost_is_charged_once_when_it_is_said_again(
    detail_harness: TaskDetailHarness,
) -> None:
    await detail_harness.task_harness.create("t")
    [leased] = await detail_harness.task_harness.claim()
    said = [await detail_harness.report_costs(leased.task, CENT, key=key) for key in ("p1", "p1", "p2", "p1")]
    assert [row.usd_micros for row in said] == [10_000, 10_000, 20_000, 20_000]
    together = await asyncio.gather(*(detail_harness.report_costs(leased.task, CENT, key="p3") for _ in range(5)))
    assert {row.usd_micros for row in together} == {30_000}
    assert [cost.usd_micros for cost in await detail_harness.read_costs("task")] == [30_000]
    await detail_harness.report_costs(leased.task, CENT)
    assert (await detail_harness.report_costs(leased.task, CENT)).usd_micros == 50_000


async def test_of_many_who_report_at_once_nothing_is_lost_and_the_limit_is_passed_once(
    detail_harness: TaskDetailHarness,
) -> None:
    work = detail_harness.task_harness
    await work.create_many([work.create_command() for _ in range(60)])
    leases = await work.claim(limit=60)
    await detail_harness.put_budget(usd_micros=300_000)
    await detail_harness.put_budget(Scope.TASK_TYPE, "development", Period.MONTH, tokens=10**9)
    await asyncio.gather(*(detail_harness.complete_with_costs(leased.task, CENT) for leased in leases))
    of_type, of_zone = await detail_harness.list_budgets()
    assert (of_type.spent_tokens, of_zone.spent_usd_micros) == (60 * 120, 600_000)
    [passed] = await told(detail_harness.runtime, "budget.spent")
    assert (passed["scope"], passed["usd"], passed["isSpent"]) == ("workspace", 0.3, True)
    assert sum(s.usd_micros for s in await detail_harness.read_costs("task")) == 600_000


@pytest.mark.parametrize(("scope", "key"), [(Scope.ZONE, ""), (Scope.TASK_TYPE, "development"), (Scope.TASK, "t")])
async def test_a_spent_budget_refuses_claims_until_it_is_raised(
    detail_harness: TaskDetailHarness, scope: Scope, key: str
) -> None:
    work = detail_harness.task_harness
    await work.create("t")
    await detail_harness.put_budget(scope, key, usd_micros=0)
    assert await work.claim() == ()
    explained = await detail_harness.explain("t")
    assert (explained.code, explained.budget is not None) == ("budget_spent", True)
    await detail_harness.put_budget(scope, key, usd_micros=1)
    [leased] = await work.claim()
    assert leased.task.id == "t"


async def test_what_others_may_spend_is_handed_out_past_what_waits_for_a_budget(
    detail_harness: TaskDetailHarness,
) -> None:
    work = detail_harness.task_harness
    await work.create("first", task_type="dear", priority=10)
    await work.create("second", task_type="cheap", priority=1)
    await detail_harness.put_budget(Scope.TASK_TYPE, "dear", usd_micros=0)
    [leased] = await work.claim()
    assert leased.task.id == "second"
    await work.create_many([work.create_command(f"t{n}", priority=9) for n in range(3)])
    await work.create("last", priority=1)
    for name in ("t0", "t1", "t2"):
        await detail_harness.put_budget(Scope.TASK, name, usd_micros=0)
    [leased] = await work.claim()
    assert leased.task.id == "last"


async def test_a_budget_begins_anew_with_its_period(detail_harness: TaskDetailHarness) -> None:
    work = detail_harness.task_harness
    await work.create("t")
    [leased] = await work.claim()
    await detail_harness.put_budget(period=Period.DAY, usd_micros=5_000)
    await detail_harness.report_costs(leased.task, CENT)
    await work.create("u")
    assert await work.claim() == ()
    detail_harness.runtime.database.execute(
        "update budgets set began_at = began_at - 86400000, ends_at = ends_at - 86400000"
    )
    [leased] = await work.claim()
    assert leased.task.id == "u"
    await detail_harness.report_costs(leased.task, Cost("opus", 0, 0, 4_999))
    [budget] = await detail_harness.list_budgets()
    assert budget.spent_usd_micros == 4_999
    await detail_harness.report_costs(leased.task, Cost("opus", 0, 0, 1))
    assert len(await told(detail_harness.runtime, "budget.spent")) == 2


async def test_a_new_budget_counts_what_its_period_has_seen_already(detail_harness: TaskDetailHarness) -> None:
    work = detail_harness.task_harness
    await work.create("t")
    [leased] = await work.claim()
    await detail_harness.complete_with_costs(leased.task, CENT, CENT)
    for scope, key in ((Scope.ZONE, ""), (Scope.TASK_TYPE, "development"), (Scope.TASK, "t")):
        made = await detail_harness.put_budget(scope, key, Period.WEEK, usd_micros=20_000)
        assert (made.spent_usd_micros, made.spent_tokens) == (20_000, 240)
    other = await detail_harness.put_budget(Scope.TASK_TYPE, "other", usd_micros=1)
    assert other.spent_usd_micros == 0
    assert len(await told(detail_harness.runtime, "budget.spent")) == 3
    assert len(await told(detail_harness.runtime, "budget.changed")) == 4
    removed = await detail_harness.remove_budget(Scope.TASK, "t", Period.WEEK)
    assert removed.scope is Scope.TASK
    assert (await told(detail_harness.runtime, "budget.changed"))[-1]["removed"] is True
    assert await refused(detail_harness.remove_budget(Scope.TASK, "t", Period.WEEK)) == "budget_not_found"


async def test_only_who_rules_a_zone_changes_its_budgets_and_agents_see_no_costs(
    detail_harness: TaskDetailHarness,
) -> None:
    plain = msgspec.structs.replace(caller(), is_local=True)
    detail_harness.caller = plain
    assert await refused(detail_harness.put_budget(usd_micros=1)) == "forbidden_role"
    assert await detail_harness.read_costs("workspace") == []
    detail_harness.caller = msgspec.structs.replace(plain, agent_id="a")
    assert await refused(detail_harness.read_costs("workspace")) == "forbidden_role"
    detail_harness.caller = msgspec.structs.replace(plain, is_local=False)
    assert await refused(detail_harness.list_budgets()) == "not_a_member"


async def test_a_zone_has_so_many_budgets_and_no_more(detail_harness: TaskDetailHarness) -> None:
    assert await refused(detail_harness.put_budget(Scope.TASK, "nobody", usd_micros=1)) == "task_not_found"
    made = [detail_harness.put_budget(Scope.TASK_TYPE, f"t{n}", tokens=1) for n in range(BUDGETS_MAX)]
    await asyncio.gather(*made)
    assert await refused(detail_harness.put_budget(tokens=1)) == "too_many_budgets"
    await detail_harness.put_budget(Scope.TASK_TYPE, "t0", tokens=2)
    await detail_harness.remove_budget(Scope.TASK_TYPE, "t0")
    await detail_harness.put_budget(tokens=1)


async def test_budgets_and_costs_of_one_zone_are_nothing_to_another(detail_harness: TaskDetailHarness) -> None:
    await detail_harness.runtime.put_zone("elsewhere")
    work = detail_harness.task_harness
    await work.create("t")
    await detail_harness.put_budget(usd_micros=0)
    side = detail_harness.runtime.database
    side.execute("update budgets set zone_id = 'elsewhere'")
    [leased] = await work.claim()
    await detail_harness.complete_with_costs(leased.task, CENT)
    assert await detail_harness.list_budgets() == []
    assert side.scalar("select spent_usd_micros from budgets") == 0


async def test_with_a_forgotten_task_goes_what_it_cost_and_what_was_said_and_the_zones_sums_stay(
    detail_harness: TaskDetailHarness,
) -> None:
    work, side = detail_harness.task_harness, detail_harness.runtime.database
    for name in ("old", "young"):
        await work.create(name)
        [leased] = await work.claim()
        await detail_harness.add_lines(leased.task, "said")
        await detail_harness.put_budget(Scope.TASK, name, usd_micros=1)
        await detail_harness.complete_with_costs(leased.task, CENT)
    side.execute("update agent_tasks set status = 'ARCHIVED' where id = 'old'")
    await detail_harness.runtime.cross_zone_engine.transact(
        lambda tx: delete_expired(tx, [(ZONE, "old"), (ZONE, "young")])
    )
    for table, column in (
        ("task_costs", "task_id"),
        ("task_log_lines", "task_id"),
        ("task_log_counts", "task_id"),
        ("budgets", "scope_key"),
    ):
        assert [name for [name] in side.execute(f"select {column} from {table}")] == ["young"]
    [whole] = await detail_harness.read_costs("workspace")
    assert whole.usd_micros == 2 * CENT.usd_micros
