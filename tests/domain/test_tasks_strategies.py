"""The ranking strategy of a zone: it applies to new tasks at once and to waiting tasks soon."""

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
    harness = CoordinatorHarness(runtime)
    await harness.task_harness.register_agent()
    return harness


async def set_strategy(harness: CoordinatorHarness, strategy: Strategy, by: Caller | None = None) -> None:
    await harness.rank_lane.submit(PutStrategy(zone_id=ZONE, caller=by or admin(), strategy=strategy))


async def claim_order(harness: CoordinatorHarness) -> list[str]:
    return [leased.task.id for leased in await harness.task_harness.claim("a", 100)]


def local_caller(name: str) -> Caller:
    return Caller(name, "app", ZONE, frozenset(), is_local=True)


async def test_waiting_tasks_are_reranked_in_bounded_steps_and_new_tasks_at_once(
    coordinator_harness: CoordinatorHarness,
) -> None:
    for number in range(7):
        await coordinator_harness.task_harness.create(
            f"t{number}", priority=10 - number, estimated_duration_minutes=10 - number
        )
    await coordinator_harness.task_harness.create("blocked", depends_on=("t0",), estimated_duration_minutes=1)
    await set_strategy(coordinator_harness, Strategy.SJF)
    await coordinator_harness.run_cycle()
    assert coordinator_harness.runtime.database.count("agent_tasks", "ranked_by = 'sjf'") == 3, "a step is bounded"
    await coordinator_harness.task_harness.create("new", estimated_duration_minutes=2)
    await coordinator_harness.run_until_idle()
    assert coordinator_harness.runtime.database.count("agent_tasks", "ranked_by = 'sjf'") == 9
    assert await claim_order(coordinator_harness) == ["new", "t6", "t5", "t4", "t3", "t2", "t1", "t0"]


async def test_reranking_continues_after_a_restart(coordinator_harness: CoordinatorHarness) -> None:
    for number in range(7):
        await coordinator_harness.task_harness.create(f"t{number}")
    await set_strategy(coordinator_harness, Strategy.SJF)
    await coordinator_harness.run_cycle()
    await coordinator_harness.lease.release()
    other = CoordinatorHarness(coordinator_harness.runtime)
    assert await other.coordinator.is_due() is True
    await other.run_until_idle()
    assert coordinator_harness.runtime.database.count("agent_tasks", "ranked_by = 'sjf'") == 7
    assert coordinator_harness.runtime.database.count("task_strategies", "ranked_to is null") == 1


async def test_fair_strategy_alternates_between_creators_of_waiting_tasks(
    coordinator_harness: CoordinatorHarness,
) -> None:
    for number in range(4):
        await coordinator_harness.task_harness.create(f"greedy{number}", caller=local_caller("greedy"))
    await coordinator_harness.task_harness.create("modest0", caller=local_caller("modest"))
    await coordinator_harness.task_harness.create("modest1", caller=local_caller("modest"))
    await set_strategy(coordinator_harness, Strategy.FAIR)
    await coordinator_harness.run_until_idle()
    order = await claim_order(coordinator_harness)
    assert {*order[:2]} == {"greedy0", "modest0"}
    assert {*order[2:4]} == {"greedy1", "modest1"}
    assert order[4:] == ["greedy2", "greedy3"]


async def test_setting_the_current_strategy_changes_nothing(coordinator_harness: CoordinatorHarness) -> None:
    await set_strategy(coordinator_harness, Strategy.PRIORITY)
    assert coordinator_harness.runtime.database.count("task_strategies") == 0
    assert "coordinator.strategy" not in [event.type for event in await coordinator_harness.runtime.read_log()]


async def test_member_cannot_set_the_strategy(coordinator_harness: CoordinatorHarness) -> None:
    with pytest.raises(Problem) as refusal:
        await set_strategy(coordinator_harness, Strategy.FAIR, caller())
    assert refusal.value.code in ("forbidden_role", "not_a_member")
