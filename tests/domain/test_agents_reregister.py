"""Agent identity over time, on both engines: reregistration, a new worker process, and retention."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import DAY
from quarterdeck.domain.agents.model import DeleteAgent, State
from quarterdeck.domain.tasks.model.rows import State as TaskState
from tests.support.agents import AGENT_ID, AgentHarness, agent_caller
from tests.support.builders import ZONE
from tests.support.outcomes import problem_code
from tests.support.tasks import TaskHarness


async def test_token_is_valid_only_for_the_registration_it_was_issued_for(agent_harness: AgentHarness) -> None:
    first = (await agent_harness.register()).agent
    local_caller = msgspec.structs.replace(agent_caller(), agent_since=first.created_at)
    external_caller = msgspec.structs.replace(agent_caller(), issued_at=first.created_at)
    for caller in (local_caller, external_caller):
        await agent_harness.heartbeat(caller=caller)
    await agent_harness.terminate()
    second = (await agent_harness.register()).agent
    assert second.created_at > first.created_at
    for caller in (local_caller, external_caller):
        assert await problem_code(agent_harness.heartbeat(caller=caller)) == "agent_ended"
        assert await problem_code(agent_harness.read(caller=caller)) == "agent_ended"
    await agent_harness.heartbeat(caller=msgspec.structs.replace(local_caller, agent_since=second.created_at))
    await agent_harness.heartbeat(caller=msgspec.structs.replace(external_caller, issued_at=second.created_at))


# -- a new worker process ----------------------------------------------------------------------------------------


async def test_new_run_id_aborts_the_tasks_held_by_the_previous_process(agent_harness: AgentHarness) -> None:
    task_harness = TaskHarness(agent_harness.runtime)
    await task_harness.register_agent()
    await task_harness.create("t")
    await agent_harness.register(run_id="first")
    [leased] = await task_harness.claim()
    # The same process or a retried request: the task stays with it.
    await agent_harness.register(run_id="first")
    assert (await task_harness.read("t")).task.status is TaskState.RUNNING
    await agent_harness.register(run_id="second")
    lost = (await task_harness.read("t")).task
    assert (lost.status, lost.reason, task_harness.read_held()) == (TaskState.ABORTED, "lost_by_agent", 0)
    assert await problem_code(task_harness.complete(leased.task)) == "stale_attempt"
    await task_harness.make_available("t")
    await task_harness.claim()
    for run_id in ("first", "second", None):
        await agent_harness.register(run_id=run_id)
    assert (await task_harness.read("t")).task.status is TaskState.RUNNING
    assert (await agent_harness.event_types()).count("agent.restarted") == 1


async def test_new_run_id_of_a_launched_agent_aborts_no_tasks(agent_harness: AgentHarness) -> None:
    task_harness = TaskHarness(agent_harness.runtime)
    await agent_harness.register(launcher="local")
    await task_harness.create("t")
    await task_harness.claim()
    await agent_harness.register(run_id="another")
    assert (await task_harness.read("t")).task.status is TaskState.RUNNING


# -- retention ---------------------------------------------------------------------------------------------------


def set_terminated_days_ago(harness: AgentHarness, agent_id: str, days: int) -> None:
    harness.runtime.database.execute(
        "update agents set terminated_at = terminated_at - ? where id = ?", days * DAY, agent_id
    )


async def test_terminated_agent_is_deleted_with_its_heartbeats_after_retention(agent_harness: AgentHarness) -> None:
    for name in ("live", "recent", "old", "reregistered"):
        await agent_harness.register(name, capabilities=["x"])
        await agent_harness.heartbeat(name)
    for name in ("recent", "old", "reregistered"):
        await agent_harness.terminate(name)
        set_terminated_days_ago(agent_harness, name, 31 if name != "recent" else 29)
    await agent_harness.register("reregistered")
    assert await agent_harness.delete_past_retention(30 * DAY) == 1
    assert await agent_harness.list_ids() == ["live", "recent", "reregistered"]
    assert await agent_harness.list_ids(capability="x") == ["live", "recent"]
    for table in ("agent_pulses", "agent_capabilities", "agent_heartbeats"):
        assert not agent_harness.runtime.database.execute(f"select 1 from {table} where agent_id = 'old'"), table
    assert await problem_code(agent_harness.heartbeat("old")) == "agent_not_found"
    # A token of the deleted agent is not valid for a new agent with the same id.
    new = (await agent_harness.register("old")).agent
    old_caller = msgspec.structs.replace(agent_caller("old"), issued_at=new.created_at - 1)
    assert await problem_code(agent_harness.heartbeat("old", old_caller)) == "agent_ended"


async def test_terminated_agent_is_kept_while_a_task_references_it(agent_harness: AgentHarness) -> None:
    task_harness = TaskHarness(agent_harness.runtime)
    await task_harness.register_agent()
    await task_harness.create("t")
    [leased] = await task_harness.claim()
    await task_harness.complete(leased.task)
    await agent_harness.terminate()
    set_terminated_days_ago(agent_harness, AGENT_ID, 31)
    assert await agent_harness.delete_past_retention(30 * DAY) == 0
    agent_harness.runtime.database.execute("delete from agent_tasks where id = 't'")
    assert await agent_harness.delete_past_retention(30 * DAY) == 1
    assert await agent_harness.list_ids() == []


async def test_agent_reregistered_before_its_deletion_is_kept(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    await agent_harness.terminate()
    set_terminated_days_ago(agent_harness, AGENT_ID, 31)
    terminated = await agent_harness.read()
    assert terminated.terminated_at is not None
    command = DeleteAgent(zone_id=ZONE, agent_id=AGENT_ID, before=terminated.terminated_at + 1)
    await agent_harness.register()
    assert not (await agent_harness.delete_lane.submit(command)).is_deleted
    assert (await agent_harness.heartbeat()).agent.status is State.IDLE
