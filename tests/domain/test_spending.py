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
from tests.support.asking import ZONE, caller
from tests.support.keel import Keel
from tests.support.recording import Recording
from tests.support.working import Working

CENT = Cost("opus", 100, 20, 10_000)


@pytest.fixture
async def records(keel: Keel) -> Recording:
    work = Working(keel)
    await work.agent()
    return Recording(work)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


async def told(keel: Keel, kind: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(event.data) for event in await keel.log() if event.type == kind]


async def test_what_is_said_is_summed_by_task_agent_model_type_day_and_zone(records: Recording) -> None:
    work = records.work
    await work.agent("b")
    first, second = [await work.make(name, task_type=name) for name in ("x", "y")]
    [a] = await work.claim("a", task_types=frozenset({"x"}))
    [b] = await work.claim("b", task_types=frozenset({"y"}))
    await records.spend(a.task, CENT, Cost("haiku", 1, 2, 3))
    await records.spend(a.task, CENT)
    await records.complete(b.task, CENT)
    sums = {each.key: each for each in await records.costs("task")}
    assert {key: each.usd_micros for key, each in sums.items()} == {first.id: 20_003, second.id: 10_000}
    assert (sums["x"].input_tokens, sums["x"].output_tokens) == (201, 42)
    assert [(s.key, s.usd_micros) for s in await records.costs("agent")] == [("a", 20_003), ("b", 10_000)]
    assert [(s.key, s.usd_micros) for s in await records.costs("model")] == [("haiku", 3), ("opus", 30_000)]
    assert [(s.key, s.usd_micros) for s in await records.costs("taskType")] == [("x", 20_003), ("y", 10_000)]
    [whole] = await records.costs("workspace")
    assert (whole.key, whole.usd_micros) == (ZONE, 30_003)
    [day] = await records.costs("day")
    assert day.usd_micros == 30_003
    shown = (await work.show("x")).task
    assert (shown.usd_micros, shown.input_tokens, shown.output_tokens) == (20_003, 201, 42)


async def test_costs_are_found_by_days_and_page_by_page(records: Recording) -> None:
    work = records.work
    await work.make_many([work.asking(f"t{n}") for n in range(5)])
    for leased in await work.claim(most=5):
        await records.complete(leased.task, CENT)
    records.keel.side.run("update task_costs set day = day - 2 where task_id in ('t0', 't1')")
    today = rules.parse_day((await records.costs("day"))[0].key, "since")
    assert [s.key for s in await records.costs("task", since=today)] == ["t2", "t3", "t4"]
    assert [s.key for s in await records.costs("task", until=today)] == ["t0", "t1"]
    assert [s.key for s in await records.costs("task", limit=2)] == ["t0", "t1"]
    assert [s.key for s in await records.costs("task", limit=2, after="t1")] == ["t2", "t3"]
    assert await records.costs("day", until=today) == []
    assert await records.costs("workspace", until=today) == []


async def test_what_is_charged_is_told_of_so_that_a_lost_commit_is_not_charged_again(records: Recording) -> None:
    await records.work.make("t")
    [leased] = await records.work.claim()
    before = len(await records.keel.log())
    await records.spend(leased.task, CENT)
    assert [event.type for event in (await records.keel.log())[before:]] == ["task.progressed"]


async def test_progress_whose_answer_was_lost_is_charged_once_when_it_is_said_again(records: Recording) -> None:
    await records.work.make("t")
    [leased] = await records.work.claim()
    said = [await records.spend(leased.task, CENT, key=key) for key in ("p1", "p1", "p2", "p1")]
    assert [row.usd_micros for row in said] == [10_000, 10_000, 20_000, 20_000]
    together = await asyncio.gather(*(records.spend(leased.task, CENT, key="p3") for _ in range(5)))
    assert {row.usd_micros for row in together} == {30_000}
    assert [cost.usd_micros for cost in await records.costs("task")] == [30_000]
    await records.spend(leased.task, CENT)
    assert (await records.spend(leased.task, CENT)).usd_micros == 50_000


async def test_of_many_who_report_at_once_nothing_is_lost_and_the_limit_is_passed_once(records: Recording) -> None:
    work = records.work
    await work.make_many([work.asking() for _ in range(60)])
    leases = await work.claim(most=60)
    await records.budget(usd_micros=300_000)
    await records.budget(Scope.TASK_TYPE, "development", Period.MONTH, tokens=10**9)
    await asyncio.gather(*(records.complete(leased.task, CENT) for leased in leases))
    of_type, of_zone = await records.budgets()
    assert (of_type.spent_tokens, of_zone.spent_usd_micros) == (60 * 120, 600_000)
    [passed] = await told(records.keel, "budget.spent")
    assert (passed["scope"], passed["usd"], passed["isSpent"]) == ("workspace", 0.3, True)
    assert sum(s.usd_micros for s in await records.costs("task")) == 600_000


@pytest.mark.parametrize(("scope", "key"), [(Scope.ZONE, ""), (Scope.TASK_TYPE, "development"), (Scope.TASK, "t")])
async def test_a_spent_budget_refuses_claims_until_it_is_raised(records: Recording, scope: Scope, key: str) -> None:
    work = records.work
    await work.make("t")
    await records.budget(scope, key, usd_micros=0)
    assert await work.claim() == ()
    explained = await records.explain("t")
    assert (explained.code, explained.budget is not None) == ("budget_spent", True)
    await records.budget(scope, key, usd_micros=1)
    [leased] = await work.claim()
    assert leased.task.id == "t"


async def test_what_others_may_spend_is_handed_out_past_what_waits_for_a_budget(records: Recording) -> None:
    work = records.work
    await work.make("first", task_type="dear", priority=10)
    await work.make("second", task_type="cheap", priority=1)
    await records.budget(Scope.TASK_TYPE, "dear", usd_micros=0)
    [leased] = await work.claim()
    assert leased.task.id == "second"
    await work.make_many([work.asking(f"t{n}", priority=9) for n in range(3)])
    await work.make("last", priority=1)
    for name in ("t0", "t1", "t2"):
        await records.budget(Scope.TASK, name, usd_micros=0)
    [leased] = await work.claim()
    assert leased.task.id == "last"


async def test_a_budget_begins_anew_with_its_period(records: Recording) -> None:
    work = records.work
    await work.make("t")
    [leased] = await work.claim()
    await records.budget(period=Period.DAY, usd_micros=5_000)
    await records.spend(leased.task, CENT)
    await work.make("u")
    assert await work.claim() == ()
    records.keel.side.run("update budgets set began_at = began_at - 86400000, ends_at = ends_at - 86400000")
    [leased] = await work.claim()
    assert leased.task.id == "u"
    await records.spend(leased.task, Cost("opus", 0, 0, 4_999))
    [budget] = await records.budgets()
    assert budget.spent_usd_micros == 4_999
    await records.spend(leased.task, Cost("opus", 0, 0, 1))
    assert len(await told(records.keel, "budget.spent")) == 2


async def test_a_new_budget_counts_what_its_period_has_seen_already(records: Recording) -> None:
    work = records.work
    await work.make("t")
    [leased] = await work.claim()
    await records.complete(leased.task, CENT, CENT)
    for scope, key in ((Scope.ZONE, ""), (Scope.TASK_TYPE, "development"), (Scope.TASK, "t")):
        made = await records.budget(scope, key, Period.WEEK, usd_micros=20_000)
        assert (made.spent_usd_micros, made.spent_tokens) == (20_000, 240)
    other = await records.budget(Scope.TASK_TYPE, "other", usd_micros=1)
    assert other.spent_usd_micros == 0
    assert len(await told(records.keel, "budget.spent")) == 3
    assert len(await told(records.keel, "budget.changed")) == 4
    removed = await records.remove(Scope.TASK, "t", Period.WEEK)
    assert removed.scope is Scope.TASK
    assert (await told(records.keel, "budget.changed"))[-1]["removed"] is True
    assert await refused(records.remove(Scope.TASK, "t", Period.WEEK)) == "budget_not_found"


async def test_only_who_rules_a_zone_changes_its_budgets_and_agents_see_no_costs(records: Recording) -> None:
    plain = msgspec.structs.replace(caller(), is_local=True)
    records.caller = plain
    assert await refused(records.budget(usd_micros=1)) == "forbidden_role"
    assert await records.costs("workspace") == []
    records.caller = msgspec.structs.replace(plain, agent_id="a")
    assert await refused(records.costs("workspace")) == "forbidden_role"
    records.caller = msgspec.structs.replace(plain, is_local=False)
    assert await refused(records.budgets()) == "not_a_member"


async def test_a_zone_has_so_many_budgets_and_no_more(records: Recording) -> None:
    assert await refused(records.budget(Scope.TASK, "nobody", usd_micros=1)) == "task_not_found"
    made = [records.budget(Scope.TASK_TYPE, f"t{n}", tokens=1) for n in range(BUDGETS_MAX)]
    await asyncio.gather(*made)
    assert await refused(records.budget(tokens=1)) == "too_many_budgets"
    await records.budget(Scope.TASK_TYPE, "t0", tokens=2)
    await records.remove(Scope.TASK_TYPE, "t0")
    await records.budget(tokens=1)


async def test_budgets_and_costs_of_one_zone_are_nothing_to_another(records: Recording) -> None:
    await records.keel.zone("elsewhere")
    work = records.work
    await work.make("t")
    await records.budget(usd_micros=0)
    side = records.keel.side
    side.run("update budgets set zone_id = 'elsewhere'")
    [leased] = await work.claim()
    await records.complete(leased.task, CENT)
    assert await records.budgets() == []
    assert side.one("select spent_usd_micros from budgets") == 0


async def test_with_a_forgotten_task_goes_what_it_cost_and_what_was_said_and_the_zones_sums_stay(
    records: Recording,
) -> None:
    work, side = records.work, records.keel.side
    for name in ("old", "young"):
        await work.make(name)
        [leased] = await work.claim()
        await records.say(leased.task, "said")
        await records.budget(Scope.TASK, name, usd_micros=1)
        await records.complete(leased.task, CENT)
    side.run("update agent_tasks set status = 'ARCHIVED' where id = 'old'")
    await records.keel.everywhere.transact(lambda tx: delete_expired(tx, [(ZONE, "old"), (ZONE, "young")]))
    for table, column in (
        ("task_costs", "task_id"),
        ("task_log_lines", "task_id"),
        ("task_log_counts", "task_id"),
        ("budgets", "scope_key"),
    ):
        assert [name for [name] in side.run(f"select {column} from {table}")] == ["young"]
    [whole] = await records.costs("workspace")
    assert whole.usd_micros == 2 * CENT.usd_micros
