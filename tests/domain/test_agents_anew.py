"""Agents that are not who they were: registered anew, worked as by another process, forgotten. On both engines."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec
import pytest

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.model import DeleteAgent, State
from quarterdeck.domain.tasks.model.rows import State as TaskState
from tests.support.agency import AGENT, Agency, agent_caller
from tests.support.asking import ZONE
from tests.support.keel import Keel
from tests.support.working import Working


@pytest.fixture
def agency(keel: Keel) -> Agency:
    return Agency(keel)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as problem:
        await asked
    return problem.value.code


async def test_a_token_is_good_for_one_registration_of_its_agent_and_for_no_later_one(agency: Agency) -> None:
    made = (await agency.register()).agent
    by_server = msgspec.structs.replace(agent_caller(), agent_since=made.created_at)
    by_another = msgspec.structs.replace(agent_caller(), issued_at=made.created_at)
    for each in (by_server, by_another):
        await agency.beat(caller=each)
    await agency.terminate()
    anew = (await agency.register()).agent
    assert anew.created_at > made.created_at
    for each in (by_server, by_another):
        assert await refused(agency.beat(caller=each)) == "agent_ended"
        assert await refused(agency.show(caller=each)) == "agent_ended"
    await agency.beat(caller=msgspec.structs.replace(by_server, agent_since=anew.created_at))
    await agency.beat(caller=msgspec.structs.replace(by_another, issued_at=anew.created_at))


# -- being another process -----------------------------------------------------------------------------------------


async def test_what_a_process_held_is_lost_as_soon_as_another_begins_as_the_same_agent(agency: Agency) -> None:
    work = Working(agency.keel)
    await work.agent()
    await work.make("t")
    await agency.register(run_id="first")
    [leased] = await work.claim()
    # The same process, or its request once more: nothing of its own is taken from it.
    await agency.register(run_id="first")
    assert (await work.show("t")).task.status is TaskState.RUNNING
    await agency.register(run_id="second")
    lost = (await work.show("t")).task
    assert (lost.status, lost.reason, work.held()) == (TaskState.ABORTED, "lost_by_agent", 0)
    assert await refused(work.complete(leased.task)) == "stale_attempt"
    await work.due("t")
    await work.claim()
    for said in ("first", "second", None):
        await agency.register(run_id=said)
    assert (await work.show("t")).task.status is TaskState.RUNNING
    assert (await agency.told()).count("agent.restarted") == 1


async def test_an_agent_that_is_launched_has_a_process_for_each_task(agency: Agency) -> None:
    work = Working(agency.keel)
    await agency.register(launcher="local")
    await work.make("t")
    await work.claim()
    await agency.register(run_id="another")
    assert (await work.show("t")).task.status is TaskState.RUNNING


# -- being forgotten ---------------------------------------------------------------------------------------------


def ended_days_ago(agency: Agency, agent_id: str, days: int) -> None:
    agency.keel.side.run("update agents set terminated_at = terminated_at - ? where id = ?", days * DAY, agent_id)


async def test_one_that_was_terminated_long_ago_is_removed_with_all_that_was_heard_of_it(agency: Agency) -> None:
    for name in ("living", "lately", "old", "anew"):
        await agency.register(name, capabilities=["x"])
        await agency.beat(name)
    for name in ("lately", "old", "anew"):
        await agency.terminate(name)
        ended_days_ago(agency, name, 31 if name != "lately" else 29)
    await agency.register("anew")
    assert await agency.forget(30 * DAY) == 1
    assert await agency.page() == ["anew", "lately", "living"]
    assert await agency.page(capability="x") == ["lately", "living"]
    for table in ("agent_pulses", "agent_capabilities", "agent_heartbeats"):
        assert not agency.keel.side.run(f"select 1 from {table} where agent_id = 'old'"), table
    assert await refused(agency.beat("old")) == "agent_not_found"
    # What was made for the one that is forgotten does not speak for the next of that name either.
    made = (await agency.register("old")).agent
    before = msgspec.structs.replace(agent_caller("old"), issued_at=made.created_at - 1)
    assert await refused(agency.beat("old", before)) == "agent_ended"


async def test_one_that_a_task_still_names_is_kept_as_long_as_that(agency: Agency) -> None:
    work = Working(agency.keel)
    await work.agent()
    await work.make("t")
    [leased] = await work.claim()
    await work.complete(leased.task)
    await agency.terminate()
    ended_days_ago(agency, AGENT, 31)
    assert await agency.forget(30 * DAY) == 0
    agency.keel.side.run("delete from agent_tasks where id = 't'")
    assert await agency.forget(30 * DAY) == 1
    assert await agency.page() == []


async def test_one_that_is_registered_again_while_it_is_found_stays(agency: Agency) -> None:
    await agency.register()
    await agency.terminate()
    ended_days_ago(agency, AGENT, 31)
    ended = await agency.show()
    assert ended.terminated_at is not None
    ask = DeleteAgent(zone_id=ZONE, agent_id=AGENT, before=ended.terminated_at + 1)
    await agency.register()
    assert not (await agency.forgets.submit(ask)).is_deleted
    assert (await agency.beat()).agent.status is State.IDLE
