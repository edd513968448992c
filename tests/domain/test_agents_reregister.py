"""Agents that are not who they were: registered anew, worked as by another process, forgotten. On both engines."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec
import pytest

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.model import DeleteAgent, State
from quarterdeck.domain.tasks.model.rows import State as TaskState
from tests.support.agents import AGENT_ID, AgentHarness, agent_caller
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness


@pytest.fixture
def agent_harness(runtime: RuntimeHarness) -> AgentHarness:
    return AgentHarness(runtime)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as problem:
        await asked
    return problem.value.code


async def test_a_token_is_good_for_one_registration_of_its_agent_and_for_no_later_one(
    agent_harness: AgentHarness,
) -> None:
    made = (await agent_harness.register()).agent
    by_server = msgspec.structs.replace(agent_caller(), agent_since=made.created_at)
    by_another = msgspec.structs.replace(agent_caller(), issued_at=made.created_at)
    for each in (by_server, by_another):
        await agent_harness.heartbeat(caller=each)
    await agent_harness.terminate()
    anew = (await agent_harness.register()).agent
    assert anew.created_at > made.created_at
    for each in (by_server, by_another):
        assert await refused(agent_harness.heartbeat(caller=each)) == "agent_ended"
        assert await refused(agent_harness.read(caller=each)) == "agent_ended"
    await agent_harness.heartbeat(caller=msgspec.structs.replace(by_server, agent_since=anew.created_at))
    await agent_harness.heartbeat(caller=msgspec.structs.replace(by_another, issued_at=anew.created_at))


# -- being another process -----------------------------------------------------------------------------------------


async def test_what_a_process_held_is_lost_as_soon_as_another_begins_as_the_same_agent(
    agent_harness: AgentHarness,
) -> None:
    work = TaskHarness(agent_harness.runtime)
    await work.register_agent()
    await work.create("t")
    await agent_harness.register(run_id="first")
    [leased] = await work.claim()
    # The same process, or its request once more: nothing of its own is taken from it.
    await agent_harness.register(run_id="first")
    assert (await work.read("t")).task.status is TaskState.RUNNING
    await agent_harness.register(run_id="second")
    lost = (await work.read("t")).task
    assert (lost.status, lost.reason, work.read_held()) == (TaskState.ABORTED, "lost_by_agent", 0)
    assert await refused(work.complete(leased.task)) == "stale_attempt"
    await work.make_available("t")
    await work.claim()
    for said in ("first", "second", None):
        await agent_harness.register(run_id=said)
    assert (await work.read("t")).task.status is TaskState.RUNNING
    assert (await agent_harness.event_types()).count("agent.restarted") == 1


async def test_an_agent_that_is_launched_has_a_process_for_each_task(agent_harness: AgentHarness) -> None:
    work = TaskHarness(agent_harness.runtime)
    await agent_harness.register(launcher="local")
    await work.create("t")
    await work.claim()
    await agent_harness.register(run_id="another")
    assert (await work.read("t")).task.status is TaskState.RUNNING


# -- being forgotten ---------------------------------------------------------------------------------------------


def ended_days_ago(agency: AgentHarness, agent_id: str, days: int) -> None:
    agency.runtime.database.execute(
        "update agents set terminated_at = terminated_at - ? where id = ?", days * DAY, agent_id
    )


async def test_one_that_was_terminated_long_ago_is_removed_with_all_that_was_heard_of_it(
    agent_harness: AgentHarness,
) -> None:
    for name in ("living", "lately", "old", "anew"):
        await agent_harness.register(name, capabilities=["x"])
        await agent_harness.heartbeat(name)
    for name in ("lately", "old", "anew"):
        await agent_harness.terminate(name)
        ended_days_ago(agent_harness, name, 31 if name != "lately" else 29)
    await agent_harness.register("anew")
    assert await agent_harness.delete_expired(30 * DAY) == 1
    assert await agent_harness.list_ids() == ["anew", "lately", "living"]
    assert await agent_harness.list_ids(capability="x") == ["lately", "living"]
    for table in ("agent_pulses", "agent_capabilities", "agent_heartbeats"):
        assert not agent_harness.runtime.database.execute(f"select 1 from {table} where agent_id = 'old'"), table
    assert await refused(agent_harness.heartbeat("old")) == "agent_not_found"
    # What was made for the one that is forgotten does not speak for the next of that name either.
    made = (await agent_harness.register("old")).agent
    before = msgspec.structs.replace(agent_caller("old"), issued_at=made.created_at - 1)
    assert await refused(agent_harness.heartbeat("old", before)) == "agent_ended"


async def test_one_that_a_task_still_names_is_kept_as_long_as_that(agent_harness: AgentHarness) -> None:
    work = TaskHarness(agent_harness.runtime)
    await work.register_agent()
    await work.create("t")
    [leased] = await work.claim()
    await work.complete(leased.task)
    await agent_harness.terminate()
    ended_days_ago(agent_harness, AGENT_ID, 31)
    assert await agent_harness.delete_expired(30 * DAY) == 0
    agent_harness.runtime.database.execute("delete from agent_tasks where id = 't'")
    assert await agent_harness.delete_expired(30 * DAY) == 1
    assert await agent_harness.list_ids() == []


async def test_one_that_is_registered_again_while_it_is_found_stays(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    await agent_harness.terminate()
    ended_days_ago(agent_harness, AGENT_ID, 31)
    ended = await agent_harness.read()
    assert ended.terminated_at is not None
    ask = DeleteAgent(zone_id=ZONE, agent_id=AGENT_ID, before=ended.terminated_at + 1)
    await agent_harness.register()
    assert not (await agent_harness.delete_lane.submit(ask)).is_deleted
    assert (await agent_harness.heartbeat()).agent.status is State.IDLE
