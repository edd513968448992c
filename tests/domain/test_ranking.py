"""The strategy of a zone: it counts at once for what is made, and soon for what waits already."""

from __future__ import annotations

import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.rows import Strategy
from quarterdeck.domain.tasks.operations import strategies
from quarterdeck.domain.tasks.operations.strategies import PutStrategy
from tests.support.asking import ZONE, admin, caller
from tests.support.coordinating import Coordinating
from tests.support.keel import Keel


@pytest.fixture
async def here(keel: Keel, monkeypatch: pytest.MonkeyPatch) -> Coordinating:
    monkeypatch.setattr(strategies, "SLICE", 3)
    made = Coordinating(keel)
    await made.work.agent()
    return made


async def choose(here: Coordinating, strategy: Strategy, by: Caller | None = None) -> None:
    await here.ranks.submit(PutStrategy(zone_id=ZONE, caller=by or admin(), strategy=strategy))


async def given_out(here: Coordinating) -> list[str]:
    return [leased.task.id for leased in await here.work.claim("a", 100)]


def somebody(name: str) -> Caller:
    return Caller(name, "app", ZONE, frozenset(), is_local=True)


async def test_what_waits_is_ranked_anew_in_steps_and_what_is_made_meanwhile_at_once(here: Coordinating) -> None:
    for number in range(7):
        await here.work.make(f"t{number}", priority=10 - number, estimated_duration_minutes=10 - number)
    await here.work.make("blocked", depends_on=("t0",), estimated_duration_minutes=1)
    await choose(here, Strategy.SJF)
    await here.turn()
    assert here.keel.side.count("agent_tasks", "ranked_by = 'sjf'") == 3, "a step is bounded"
    await here.work.make("new", estimated_duration_minutes=2)
    await here.turns()
    assert here.keel.side.count("agent_tasks", "ranked_by = 'sjf'") == 9
    assert await given_out(here) == ["new", "t6", "t5", "t4", "t3", "t2", "t1", "t0"]


async def test_a_restart_goes_on_where_ranking_was(here: Coordinating) -> None:
    for number in range(7):
        await here.work.make(f"t{number}")
    await choose(here, Strategy.SJF)
    await here.turn()
    await here.lease.release()
    other = Coordinating(here.keel)
    assert await other.coordinator.is_due() is True
    await other.turns()
    assert here.keel.side.count("agent_tasks", "ranked_by = 'sjf'") == 7
    assert here.keel.side.count("task_strategies", "ranked_to is null") == 1


async def test_fair_turns_are_shared_between_those_who_had_asked_before(here: Coordinating) -> None:
    for number in range(4):
        await here.work.make(f"greedy{number}", caller=somebody("greedy"))
    await here.work.make("modest0", caller=somebody("modest"))
    await here.work.make("modest1", caller=somebody("modest"))
    await choose(here, Strategy.FAIR)
    await here.turns()
    order = await given_out(here)
    assert {*order[:2]} == {"greedy0", "modest0"}
    assert {*order[2:4]} == {"greedy1", "modest1"}
    assert order[4:] == ["greedy2", "greedy3"]


async def test_choosing_what_is_chosen_already_ranks_nothing(here: Coordinating) -> None:
    await choose(here, Strategy.PRIORITY)
    assert here.keel.side.count("task_strategies") == 0
    assert "coordinator.strategy" not in [event.type for event in await here.keel.log()]


async def test_a_member_cannot_choose(here: Coordinating) -> None:
    with pytest.raises(Problem) as refusal:
        await choose(here, Strategy.FAIR, caller())
    assert refusal.value.code in ("forbidden_role", "not_a_member")
