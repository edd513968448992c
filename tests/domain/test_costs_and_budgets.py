"""Costs and budgets, on both engines: costs are counted once, and a spent budget blocks tasks."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quarterdeck.domain.costs import rules
from quarterdeck.domain.costs.model import BUDGETS_MAX, Cost, Period, Scope
from quarterdeck.domain.tasks.sweeps import delete_past_retention
from tests.support.builders import ZONE, caller
from tests.support.outcomes import problem_code
from tests.support.runtime import RuntimeHarness
from tests.support.task_details import TaskDetailHarness
from tests.support.tasks import TaskHarness

CENT = Cost("opus", 100, 20, 10_000)


@pytest.fixture
async def detail_harness(runtime: RuntimeHarness) -> TaskDetailHarness:
    task_harness = TaskHarness(runtime)
    await task_harness.register_agent()
    return TaskDetailHarness(task_harness)


async def event_data(runtime: RuntimeHarness, event_type: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(event.data) for event in await runtime.read_log() if event.type == event_type]


async def test_costs_are_summed_by_task_agent_model_type_day_and_zone(detail_harness: TaskDetailHarness) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.register_agent("b")
    first, second = [await task_harness.create(name, task_type=name) for name in ("x", "y")]
    [a] = await task_harness.claim("a", task_types=frozenset({"x"}))
    [b] = await task_harness.claim("b", task_types=frozenset({"y"}))
    await detail_harness.report_costs(a.task, CENT, Cost("haiku", 1, 2, 3))
    await detail_harness.report_costs(a.task, CENT)
    await detail_harness.complete_with_costs(b.task, CENT)
    sums = {cost.key: cost for cost in await detail_harness.read_costs("task")}
    assert {key: cost.usd_micros for key, cost in sums.items()} == {first.id: 20_003, second.id: 10_000}
    assert (sums["x"].input_tokens, sums["x"].output_tokens) == (201, 42)
    assert [(row.key, row.usd_micros) for row in await detail_harness.read_costs("agent")] == [
        ("a", 20_003),
        ("b", 10_000),
    ]
    assert [(row.key, row.usd_micros) for row in await detail_harness.read_costs("model")] == [
        ("haiku", 3),
        ("opus", 30_000),
    ]
    assert [(row.key, row.usd_micros) for row in await detail_harness.read_costs("taskType")] == [
        ("x", 20_003),
        ("y", 10_000),
    ]
    [total] = await detail_harness.read_costs("workspace")
    assert (total.key, total.usd_micros) == (ZONE, 30_003)
    [day] = await detail_harness.read_costs("day")
    assert day.usd_micros == 30_003
    task = (await task_harness.read("x")).task
    assert (task.usd_micros, task.input_tokens, task.output_tokens) == (20_003, 201, 42)


async def test_costs_can_be_filtered_by_day_and_paged(detail_harness: TaskDetailHarness) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.create_many([task_harness.create_command(f"t{n}") for n in range(5)])
    for leased in await task_harness.claim(limit=5):
        await detail_harness.complete_with_costs(leased.task, CENT)
    detail_harness.runtime.database.execute("update task_costs set day = day - 2 where task_id in ('t0', 't1')")
    today = rules.parse_day((await detail_harness.read_costs("day"))[0].key, "since")
    assert [row.key for row in await detail_harness.read_costs("task", since_day=today)] == ["t2", "t3", "t4"]
    assert [row.key for row in await detail_harness.read_costs("task", until_day=today)] == ["t0", "t1"]
    assert [row.key for row in await detail_harness.read_costs("task", limit=2)] == ["t0", "t1"]
    assert [row.key for row in await detail_harness.read_costs("task", limit=2, after="t1")] == ["t2", "t3"]
    assert await detail_harness.read_costs("day", until_day=today) == []
    assert await detail_harness.read_costs("workspace", until_day=today) == []


async def test_reported_costs_are_logged_as_one_progress_event(detail_harness: TaskDetailHarness) -> None:
    await detail_harness.task_harness.create("t")
    [leased] = await detail_harness.task_harness.claim()
    before = len(await detail_harness.runtime.read_log())
    await detail_harness.report_costs(leased.task, CENT)
    # The event shows whether a COMMIT with a lost response took effect, so that the costs are not charged again.
    assert [event.type for event in (await detail_harness.runtime.read_log())[before:]] == ["task.progressed"]


async def test_repeated_progress_with_the_same_key_is_charged_once(detail_harness: TaskDetailHarness) -> None:
    await detail_harness.task_harness.create("t")
    [leased] = await detail_harness.task_harness.claim()
    reports = [await detail_harness.report_costs(leased.task, CENT, key=key) for key in ("p1", "p1", "p2", "p1")]
    assert [row.usd_micros for row in reports] == [10_000, 10_000, 20_000, 20_000]
    concurrent = await asyncio.gather(*(detail_harness.report_costs(leased.task, CENT, key="p3") for _ in range(5)))
    assert {row.usd_micros for row in concurrent} == {30_000}
    assert [cost.usd_micros for cost in await detail_harness.read_costs("task")] == [30_000]
    await detail_harness.report_costs(leased.task, CENT)
    assert (await detail_harness.report_costs(leased.task, CENT)).usd_micros == 50_000


async def test_concurrent_cost_reports_are_all_counted_and_log_budget_spent_once(
    detail_harness: TaskDetailHarness,
) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.create_many([task_harness.create_command() for _ in range(60)])
    leases = await task_harness.claim(limit=60)
    await detail_harness.put_budget(usd_micros=300_000)
    await detail_harness.put_budget(Scope.TASK_TYPE, "development", Period.MONTH, tokens=10**9)
    await asyncio.gather(*(detail_harness.complete_with_costs(leased.task, CENT) for leased in leases))
    type_budget, zone_budget = await detail_harness.list_budgets()
    assert (type_budget.spent_tokens, zone_budget.spent_usd_micros) == (60 * 120, 600_000)
    [spent] = await event_data(detail_harness.runtime, "budget.spent")
    assert (spent["scope"], spent["usd"], spent["isSpent"]) == ("workspace", 0.3, True)
    assert sum(row.usd_micros for row in await detail_harness.read_costs("task")) == 600_000


@pytest.mark.parametrize(("scope", "key"), [(Scope.ZONE, ""), (Scope.TASK_TYPE, "development"), (Scope.TASK, "t")])
async def test_spent_budget_blocks_claims_until_it_is_raised(
    detail_harness: TaskDetailHarness, scope: Scope, key: str
) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.create("t")
    await detail_harness.put_budget(scope, key, usd_micros=0)
    assert await task_harness.claim() == ()
    explanation = await detail_harness.explain("t")
    assert (explanation.code, explanation.budget is not None) == ("budget_spent", True)
    await detail_harness.put_budget(scope, key, usd_micros=1)
    [leased] = await task_harness.claim()
    assert leased.task.id == "t"


async def test_claim_skips_tasks_blocked_by_a_budget(detail_harness: TaskDetailHarness) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.create("first", task_type="expensive", priority=10)
    await task_harness.create("second", task_type="cheap", priority=1)
    await detail_harness.put_budget(Scope.TASK_TYPE, "expensive", usd_micros=0)
    [leased] = await task_harness.claim()
    assert leased.task.id == "second"
    await task_harness.create_many([task_harness.create_command(f"t{n}", priority=9) for n in range(3)])
    await task_harness.create("last", priority=1)
    for name in ("t0", "t1", "t2"):
        await detail_harness.put_budget(Scope.TASK, name, usd_micros=0)
    [leased] = await task_harness.claim()
    assert leased.task.id == "last"


async def test_budget_resets_with_its_period(detail_harness: TaskDetailHarness) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.create("t")
    [leased] = await task_harness.claim()
    await detail_harness.put_budget(period=Period.DAY, usd_micros=5_000)
    await detail_harness.report_costs(leased.task, CENT)
    await task_harness.create("u")
    assert await task_harness.claim() == ()
    detail_harness.runtime.database.execute(
        "update budgets set began_at = began_at - 86400000, ends_at = ends_at - 86400000"
    )
    [leased] = await task_harness.claim()
    assert leased.task.id == "u"
    await detail_harness.report_costs(leased.task, Cost("opus", 0, 0, 4_999))
    [budget] = await detail_harness.list_budgets()
    assert budget.spent_usd_micros == 4_999
    await detail_harness.report_costs(leased.task, Cost("opus", 0, 0, 1))
    assert len(await event_data(detail_harness.runtime, "budget.spent")) == 2


async def test_new_budget_includes_earlier_costs_of_its_period(detail_harness: TaskDetailHarness) -> None:
    task_harness = detail_harness.task_harness
    await task_harness.create("t")
    [leased] = await task_harness.claim()
    await detail_harness.complete_with_costs(leased.task, CENT, CENT)
    for scope, key in ((Scope.ZONE, ""), (Scope.TASK_TYPE, "development"), (Scope.TASK, "t")):
        budget = await detail_harness.put_budget(scope, key, Period.WEEK, usd_micros=20_000)
        assert (budget.spent_usd_micros, budget.spent_tokens) == (20_000, 240)
    other = await detail_harness.put_budget(Scope.TASK_TYPE, "other", usd_micros=1)
    assert other.spent_usd_micros == 0
    assert len(await event_data(detail_harness.runtime, "budget.spent")) == 3
    assert len(await event_data(detail_harness.runtime, "budget.changed")) == 4
    removed = await detail_harness.remove_budget(Scope.TASK, "t", Period.WEEK)
    assert removed.scope is Scope.TASK
    assert (await event_data(detail_harness.runtime, "budget.changed"))[-1]["removed"] is True
    assert await problem_code(detail_harness.remove_budget(Scope.TASK, "t", Period.WEEK)) == "budget_not_found"


async def test_only_owners_and_admins_change_budgets_and_agents_cannot_read_costs(
    detail_harness: TaskDetailHarness,
) -> None:
    member = msgspec.structs.replace(caller(), is_local=True)
    detail_harness.caller = member
    assert await problem_code(detail_harness.put_budget(usd_micros=1)) == "forbidden_role"
    assert await detail_harness.read_costs("workspace") == []
    detail_harness.caller = msgspec.structs.replace(member, agent_id="a")
    assert await problem_code(detail_harness.read_costs("workspace")) == "forbidden_role"
    detail_harness.caller = msgspec.structs.replace(member, is_local=False)
    assert await problem_code(detail_harness.list_budgets()) == "not_a_member"


async def test_number_of_budgets_per_zone_is_limited(detail_harness: TaskDetailHarness) -> None:
    assert await problem_code(detail_harness.put_budget(Scope.TASK, "missing", usd_micros=1)) == "task_not_found"
    requests = [detail_harness.put_budget(Scope.TASK_TYPE, f"t{n}", tokens=1) for n in range(BUDGETS_MAX)]
    await asyncio.gather(*requests)
    assert await problem_code(detail_harness.put_budget(tokens=1)) == "too_many_budgets"
    await detail_harness.put_budget(Scope.TASK_TYPE, "t0", tokens=2)
    await detail_harness.remove_budget(Scope.TASK_TYPE, "t0")
    await detail_harness.put_budget(tokens=1)


async def test_budgets_and_costs_do_not_affect_other_zones(detail_harness: TaskDetailHarness) -> None:
    await detail_harness.runtime.put_zone("other-zone")
    task_harness = detail_harness.task_harness
    await task_harness.create("t")
    await detail_harness.put_budget(usd_micros=0)
    database = detail_harness.runtime.database
    database.execute("update budgets set zone_id = 'other-zone'")
    [leased] = await task_harness.claim()
    await detail_harness.complete_with_costs(leased.task, CENT)
    assert await detail_harness.list_budgets() == []
    assert database.scalar("select spent_usd_micros from budgets") == 0


async def test_deleting_a_task_deletes_its_costs_and_logs_but_keeps_zone_totals(
    detail_harness: TaskDetailHarness,
) -> None:
    task_harness, database = detail_harness.task_harness, detail_harness.runtime.database
    for name in ("old", "recent"):
        await task_harness.create(name)
        [leased] = await task_harness.claim()
        await detail_harness.add_lines(leased.task, "line")
        await detail_harness.put_budget(Scope.TASK, name, usd_micros=1)
        await detail_harness.complete_with_costs(leased.task, CENT)
    database.execute("update agent_tasks set status = 'ARCHIVED' where id = 'old'")
    await detail_harness.runtime.cross_zone_engine.transact(
        lambda tx: delete_past_retention(tx, [(ZONE, "old"), (ZONE, "recent")])
    )
    for table, column in (
        ("task_costs", "task_id"),
        ("task_log_lines", "task_id"),
        ("task_log_counts", "task_id"),
        ("budgets", "scope_key"),
    ):
        assert [name for [name] in database.execute(f"select {column} from {table}")] == ["recent"]
    [total] = await detail_harness.read_costs("workspace")
    assert total.usd_micros == 2 * CENT.usd_micros
