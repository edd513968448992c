"""The strategy of a zone: it counts at once for what is made, and soon for what waits already."""

from __future__ import annotations

import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.rows import Strategy
from quarterdeck.domain.tasks.operations import strategies
from quarterdeck.domain.tasks.operations.strategies import PutStrategy
from tests.support.builders import ZONE, admin, caller
from tests.support.coordinator import CoordinatorHarness
from tests.support.runtime import RuntimeHarness


@pytest.fixture
async def coordinator_harness(runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch) -> CoordinatorHarness:
    monkeypatch.setattr(strategies, "SLICE", 3)
    made = CoordinatorHarness(runtime)
    await made.task_harness.register_agent()
    return made


async def choose(here: CoordinatorHarness, strategy: Strategy, by: Caller | None = None) -> None:
    await here.rank_lane.submit(PutStrategy(zone_id=ZONE, caller=by or admin(), strategy=strategy))


async def given_out(here: CoordinatorHarness) -> list[str]:
    return [leased.task.id for leased in await here.task_harness.claim("a", 100)]


def somebody(name: str) -> Caller:
    return Caller(name, "app", ZONE, frozenset(), is_local=True)


async def test_what_waits_is_ranked_anew_in_steps_and_what_is_made_meanwhile_at_once(
    coordinator_harness: CoordinatorHarness,
) -> None:
    for number in range(7):
        await coordinator_harness.task_harness.create(
            f"t{number}", priority=10 - number, estimated_duration_minutes=10 - number
        )
    await coordinator_harness.task_harness.create("blocked", depends_on=("t0",), estimated_duration_minutes=1)
    await choose(coordinator_harness, Strategy.SJF)
    await coordinator_harness.run_cycle()
    assert coordinator_harness.runtime.database.count("agent_tasks", "ranked_by = 'sjf'") == 3, "a step is bounded"
    await coordinator_harness.task_harness.create("new", estimated_duration_minutes=2)
    await coordinator_harness.run_until_idle()
    assert coordinator_harness.runtime.database.count("agent_tasks", "ranked_by = 'sjf'") == 9
    assert await given_out(coordinator_harness) == ["new", "t6", "t5", "t4", "t3", "t2", "t1", "t0"]


async def test_a_restart_goes_on_where_ranking_was(coordinator_harness: CoordinatorHarness) -> None:
    for number in range(7):
        await coordinator_harness.task_harness.create(f"t{number}")
    await choose(coordinator_harness, Strategy.SJF)
    await coordinator_harness.run_cycle()
    await coordinator_harness.lease.release()
    other = CoordinatorHarness(coordinator_harness.runtime)
    assert await other.coordinator.is_due() is True
    await other.run_until_idle()
    assert coordinator_harness.runtime.database.count("agent_tasks", "ranked_by = 'sjf'") == 7
    assert coordinator_harness.runtime.database.count("task_strategies", "ranked_to is null") == 1


async def test_fair_turns_are_shared_between_those_who_had_asked_before(
    coordinator_harness: CoordinatorHarness,
) -> None:
    for number in range(4):
        await coordinator_harness.task_harness.create(f"greedy{number}", caller=somebody("greedy"))
    await coordinator_harness.task_harness.create("modest0", caller=somebody("modest"))
    await coordinator_harness.task_harness.create("modest1", caller=somebody("modest"))
    await choose(coordinator_harness, Strategy.FAIR)
    await coordinator_harness.run_until_idle()
    order = await given_out(coordinator_harness)
    assert {*order[:2]} == {"greedy0", "modest0"}
    assert {*order[2:4]} == {"greedy1", "modest1"}
    assert order[4:] == ["greedy2", "greedy3"]


async def test_choosing_what_is_chosen_already_ranks_nothing(coordinator_harness: CoordinatorHarness) -> None:
    await choose(coordinator_harness, Strategy.PRIORITY)
    assert coordinator_harness.runtime.database.count("task_strategies") == 0
    assert "coordinator.strategy" not in [event.type for event in await coordinator_harness.runtime.read_log()]


async def test_a_member_cannot_choose(coordinator_harness: CoordinatorHarness) -> None:
    with pytest.raises(Problem) as refusal:
        await choose(coordinator_harness, Strategy.FAIR, caller())
    assert refusal.value.code in ("forbidden_role", "not_a_member")
