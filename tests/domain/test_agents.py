"""Agents on both engines: registration, heartbeats, staleness, draining and termination."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quarterdeck.core.caller import Role
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import Agent, AgentHealth, AgentStatus, RecordHeartbeat, RefreshStatus, State
from quarterdeck.domain.agents.rules import displayed_status
from quarterdeck.domain.agents.sweeps import HEARTBEAT_RETENTION
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.transaction import Transaction
from tests.support.agents import AGENT_ID, AgentHarness, agent_caller, user_caller
from tests.support.builders import ZONE, admin
from tests.support.outcomes import problem_code
from tests.support.runtime import RuntimeHarness

# -- registration ------------------------------------------------------------------------------------------------


async def test_new_agent_has_the_given_fields_and_defaults_for_the_rest(agent_harness: AgentHarness) -> None:
    result = await agent_harness.register(capabilities=["b", "a", "b"], labels={"z": "1", "y": "2"})
    assert result.created
    stored = await agent_harness.read()
    assert stored == result.agent
    assert (stored.capabilities, stored.labels) == ('["b","a"]', '{"y":"2","z":"1"}')
    assert (stored.name, stored.max_concurrent_tasks, stored.coordinator_enabled) == (AGENT_ID, 1, 1)
    assert (stored.heartbeat_interval_seconds, stored.stale_threshold_seconds) == (30, 180)
    assert (stored.status, stored.look_at) == (State.IDLE, result.at + 180_000)
    assert await agent_harness.event_types() == ["agent.registered"]


async def test_reregistration_keeps_omitted_fields_and_logs_only_changes(agent_harness: AgentHarness) -> None:
    await agent_harness.register(capabilities=["a", "b"], model="m", pool="p")
    updated = await agent_harness.register(model=None, capabilities=["b", "c"])
    assert not updated.created
    assert (updated.agent.model, updated.agent.pool, updated.agent.capabilities) == (None, "p", '["b","c"]')
    assert await agent_harness.read() == updated.agent
    await agent_harness.register(capabilities=["b", "c"])
    assert await agent_harness.event_types() == ["agent.registered", "agent.changed"]
    assert [await agent_harness.list_ids(capability=capability) for capability in "abc"] == [[], [AGENT_ID], [AGENT_ID]]


async def test_concurrent_registrations_create_the_agent_once(agent_harness: AgentHarness) -> None:
    results = await asyncio.gather(*(agent_harness.register(name=f"n{n}") for n in range(8)))
    assert [result.created for result in results].count(True) == 1
    assert (await agent_harness.read()).name == results[-1].agent.name


async def test_only_owners_and_admins_set_a_launcher_and_only_a_configured_one(agent_harness: AgentHarness) -> None:
    assert await problem_code(agent_harness.register(caller=user_caller(), launcher="gateway")) == "forbidden_role"
    assert await problem_code(agent_harness.register(launcher="rm")) == "unknown_launcher"
    await agent_harness.register(caller=user_caller(Role.ADMIN), launcher="gateway")
    for caller in (user_caller(), agent_caller()):
        assert await problem_code(agent_harness.register(caller=caller, launcher=None)) == "forbidden_role"
        assert await problem_code(agent_harness.register(caller=caller, launcher="local")) == "forbidden_role"
        await agent_harness.register(caller=caller, launcher="gateway", name="same")
    assert (await agent_harness.read()).launcher == "gateway"


async def test_agent_can_update_only_itself_and_cannot_add_capabilities(agent_harness: AgentHarness) -> None:
    caller = agent_caller()
    assert await problem_code(agent_harness.register(caller=caller, capabilities=[])) == "agent_not_found"
    await agent_harness.register(capabilities=["a", "b"])
    await agent_harness.register("other")
    assert await problem_code(agent_harness.register("other", caller, name="n")) == "agent_required"
    assert await problem_code(agent_harness.register("third", caller)) == "agent_required"
    assert (
        await problem_code(agent_harness.register(caller=caller, capabilities=["a", "c"])) == "capabilities_not_allowed"
    )
    changed = await agent_harness.register(caller=caller, capabilities=["b"], max_concurrent_tasks=5)
    assert (changed.agent.capabilities, changed.agent.max_concurrent_tasks) == ('["b"]', 5)
    # It cannot regain a capability that it gave up.
    assert (
        await problem_code(agent_harness.register(caller=caller, capabilities=["a", "b"])) == "capabilities_not_allowed"
    )
    # The role AGENT without an agent id has no permissions.
    assert await problem_code(agent_harness.register(caller=user_caller(Role.AGENT), name="n")) == "agent_required"


async def test_terminated_agent_is_registered_as_new_but_not_by_its_own_token(agent_harness: AgentHarness) -> None:
    await agent_harness.register(capabilities=["root"], caller=user_caller(Role.OWNER), launcher="local")
    await agent_harness.terminate()
    assert await problem_code(agent_harness.register(caller=agent_caller())) == "agent_ended"
    new = await agent_harness.register(caller=user_caller())
    assert new.created
    assert (new.agent.status, new.agent.terminated_at, new.agent.status_reason) == (State.IDLE, None, None)
    assert (new.agent.capabilities, new.agent.launcher) == ("[]", None)
    assert await agent_harness.list_ids(capability="root") == []
    assert await agent_harness.event_types() == ["agent.registered", "agent.terminated", "agent.registered"]


async def test_registration_and_token_issue_are_refused_in_an_ended_zone(
    agent_harness: AgentHarness, runtime: RuntimeHarness
) -> None:
    await agent_harness.register()
    await runtime.stop_zone(ends=True)
    assert await problem_code(agent_harness.register("late")) == "zone_ended"
    assert await problem_code(agent_harness.issue_token()) == "zone_ended"


# -- heartbeats --------------------------------------------------------------------------------------------------


async def test_heartbeat_stores_the_reported_state_and_writes_no_event(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    agent_harness.make_silent(seconds=60)
    result = await agent_harness.heartbeat(
        current_task_id="t", progress_percent=40, current_step="s", memory_mb=512, cpu_percent=7, metadata='{"a":1}'
    )
    assert not result.needs_refresh
    history = await agent_harness.read_history()
    assert history.agent == result.agent
    assert (history.agent.current_task_id, history.agent.progress_percent) == ("t", 40)
    assert (history.agent.memory_mb, history.agent.cpu_percent) == (512, 7)
    assert history.at - history.agent.last_seen_at < 60_000
    [row] = history.heartbeats
    assert (row.status, row.current_task_id, row.metadata_json) == (AgentHealth.HEALTHY, "t", '{"a":1}')
    assert row.next_expected_at == row.last_seen_at + 30_000
    assert await agent_harness.event_types() == ["agent.registered"]


async def test_heartbeat_history_gets_a_row_on_change_or_after_an_interval(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    for task in ("t", "t", "u", None, None):
        await agent_harness.heartbeat(current_task_id=task)
    assert [row.current_task_id for row in (await agent_harness.read_history()).heartbeats] == [None, "u", "t"]
    agent_harness.make_silent(seconds=11)
    for _ in range(3):
        await agent_harness.heartbeat()
    assert len((await agent_harness.read_history()).heartbeats) == 4


async def test_each_heartbeat_of_a_batch_is_answered_and_the_last_one_wins(agent_harness: AgentHarness) -> None:
    for name in "ab":
        await agent_harness.register(name)
    heartbeats = [
        RecordHeartbeat(zone_id=ZONE, agent_id=name, caller=admin(), progress_percent=n)
        for n in range(4)
        for name in "axb"
    ]
    outcomes = await asyncio.gather(*map(agent_harness.heartbeat_lane.submit, heartbeats), return_exceptions=True)
    assert [outcome.code for outcome in outcomes if isinstance(outcome, Problem)] == ["agent_not_found"] * 4
    assert [(await agent_harness.read(name)).progress_percent for name in "ab"] == [3, 3]


async def test_heartbeats_do_not_wait_for_the_zone_lock(agent_harness: AgentHarness, runtime: RuntimeHarness) -> None:
    await agent_harness.register()
    if runtime.store.kind == "sqlite":
        pytest.skip("SQLite has one writer and no zone lock")
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        held, done = asyncio.Event(), asyncio.Event()

        async def hold_zone_lock(tx: Transaction) -> None:
            await tx.read(zones.lock_statement(tx, [ZONE]))
            held.set()
            await done.wait()

        group.create_task(runtime.engine.transact(hold_zone_lock, zones=[ZONE]))
        await held.wait()
        await agent_harness.heartbeat(progress_percent=1)
        done.set()


async def test_concurrent_heartbeats_and_held_adjustments_do_not_deadlock(agent_harness: AgentHarness) -> None:
    names = [f"{letter}{n}" for letter in ("a", "B", "-", "_") for n in range(5)]
    await asyncio.gather(*(agent_harness.register(name) for name in names))
    for order in (names, names[::-1]):
        await asyncio.gather(
            *(agent_harness.heartbeat(name) for name in order),
            *(agent_harness.adjust_held({(ZONE, name): 1 for name in order[n:]}) for n in range(5)),
            *(agent_harness.heartbeat(name) for name in order[::-1]),
        )
    held = [(await agent_harness.read(name)).held for name in names]
    assert held == [6, 7, 8, 9, 10, *([10] * 10), 10, 9, 8, 7, 6]


async def test_heartbeat_is_accepted_from_the_agent_itself_or_a_user(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    await agent_harness.register("other")
    await agent_harness.heartbeat(caller=agent_caller())
    await agent_harness.heartbeat(caller=user_caller())
    assert await problem_code(agent_harness.heartbeat(caller=agent_caller("other"))) == "agent_required"
    assert await problem_code(agent_harness.heartbeat("missing")) == "agent_not_found"
    assert (
        await problem_code(agent_harness.heartbeat(caller=agent_caller(zone_id="other-zone"))) == "workspace_not_found"
    )
    await agent_harness.terminate()
    assert await problem_code(agent_harness.heartbeat()) == "agent_terminated"
    assert await problem_code(agent_harness.heartbeat(caller=agent_caller())) == "agent_ended"


async def test_heartbeat_listeners_receive_updated_agents(agent_harness: AgentHarness) -> None:
    received: list[Agent] = []
    agent_harness.heartbeat_recorder.listeners.append(received.extend)
    await agent_harness.register()
    await problem_code(agent_harness.heartbeat("missing"))
    assert received == []
    result = await agent_harness.heartbeat(current_task_id="t")
    assert received == [result.agent]


async def test_heartbeat_history_is_deleted_after_its_retention(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    for task in ("t", "u", "v"):
        await agent_harness.heartbeat(current_task_id=task)
    assert await agent_harness.sweep_runner(3_600_000).run_now(HEARTBEAT_RETENTION) == 0
    assert await agent_harness.sweep_runner(-60_000).run_now(HEARTBEAT_RETENTION) == 3
    assert (await agent_harness.read_history()).heartbeats == ()


# -- health and liveness -----------------------------------------------------------------------------------------


async def test_degraded_and_recovered_events_are_logged_once_per_change(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    for health in (
        AgentHealth.HEALTHY,
        AgentHealth.DEGRADED,
        AgentHealth.DEGRADED,
        AgentHealth.HEALTHY,
        AgentHealth.HEALTHY,
    ):
        await agent_harness.heartbeat(status=health)
    assert await agent_harness.event_types() == ["agent.registered", "agent.degraded", "agent.recovered"]
    await agent_harness.heartbeat(status=AgentHealth.DEGRADED)
    assert (await agent_harness.read()).status is State.DEGRADED


async def test_silent_agent_becomes_stale_and_a_late_heartbeat_revives_it(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    agent_harness.make_silent()
    stale = await agent_harness.refresh_status()
    assert (stale.status, stale.status_reason, stale.look_at) == (State.ERROR, "stale", None)
    assert agents.free_slots(stale) == 0
    assert (await agent_harness.refresh_status()) == stale
    await agent_harness.heartbeat()
    revived = await agent_harness.read()
    assert (revived.status, revived.status_reason) == (State.IDLE, None)
    assert revived.look_at == revived.last_seen_at + 180_000
    assert await agent_harness.event_types() == ["agent.registered", "agent.stale", "agent.revived"]


async def test_reregistration_revives_a_stale_agent(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    agent_harness.make_silent()
    await agent_harness.refresh_status()
    result = await agent_harness.register()
    assert (result.created, result.agent.status) == (False, State.IDLE)
    assert await agent_harness.event_types() == ["agent.registered", "agent.stale", "agent.revived"]


async def test_liveness_check_finds_due_agents_and_postpones_active_ones(
    agent_harness: AgentHarness, runtime: RuntimeHarness
) -> None:
    for name in "abc":
        await agent_harness.register(name)
        agent_harness.make_silent(name, seconds=200)
    await agent_harness.heartbeat("a")
    await agent_harness.register("d")
    due = await runtime.cross_zone_engine.read(lambda tx: agents.list_due_liveness_checks(tx, 10))
    assert sorted(agent.id for agent in due) == ["a", "b", "c"]
    assert await runtime.cross_zone_engine.read(agents.ms_until_liveness_check) == 0
    for agent in due:
        await agent_harness.refresh_status(agent.id)
    assert await runtime.cross_zone_engine.read(lambda tx: agents.list_due_liveness_checks(tx, 10)) == []
    assert await runtime.cross_zone_engine.read(agents.count_stale) == 2
    pause = await runtime.cross_zone_engine.read(agents.ms_until_liveness_check)
    assert pause is not None and 100_000 < pause <= 180_000
    assert (await agent_harness.read("a")).status is State.IDLE


async def test_heartbeat_concurrent_with_a_liveness_check_keeps_the_agent_idle(agent_harness: AgentHarness) -> None:
    for _ in range(4):
        await agent_harness.register()
        agent_harness.make_silent()
        await asyncio.gather(
            agent_harness.refresh_status(),
            agent_harness.heartbeat(),
            agent_harness.refresh_status(),
            agent_harness.heartbeat(),
        )
        assert (await agent_harness.read()).status is State.IDLE


async def test_launched_agent_becomes_stale_only_while_it_holds_a_task(
    agent_harness: AgentHarness, runtime: RuntimeHarness
) -> None:
    await agent_harness.register(launcher="gateway", stale_threshold_seconds=60)
    agent_harness.make_silent()
    idle = await agent_harness.refresh_status()
    assert idle.status is State.IDLE
    assert idle.look_at is not None
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 1})
    agent_harness.make_silent()
    stale = await agent_harness.refresh_status()
    assert (stale.status, stale.look_at is None) == (State.ERROR, False)
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -1})
    # Only its launcher can revive it, so without a running task it becomes launchable again.
    agent_harness.make_silent()
    assert (await agent_harness.refresh_status()).status is State.IDLE
    [launch_zone] = await runtime.cross_zone_engine.read(
        lambda tx: agents.list_launch_zones(tx, {"gateway": "", "none": ""}, 10)
    )
    assert launch_zone == ("gateway", ZONE)
    [found] = await runtime.cross_zone_engine.read(lambda tx: agents.list_launchable(tx, [launch_zone], 10))
    assert found.id == AGENT_ID
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 1})
    assert await runtime.cross_zone_engine.read(lambda tx: agents.list_launchable(tx, [launch_zone], 10)) == []


# -- held tasks and termination ----------------------------------------------------------------------------------


async def test_held_tasks_are_counted_per_agent(agent_harness: AgentHarness) -> None:
    await agent_harness.register(max_concurrent_tasks=3)
    await agent_harness.register("b")
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 2, (ZONE, "b"): 1, (ZONE, "missing"): 1})
    agent = await agent_harness.read()
    assert (agent.held, displayed_status(agent), agents.free_slots(agent)) == (2, AgentStatus.WORKING, 1)
    assert await agent_harness.list_ids(status=AgentStatus.WORKING) == ["a", "b"]
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -5, (ZONE, "b"): 0})
    assert [(await agent_harness.read(name)).held for name in "ab"] == [0, 1]
    assert await agent_harness.list_ids(status=AgentStatus.IDLE) == ["a"]
    counts = await agent_harness.runtime.engine.read(lambda tx: agents.count_by_status(tx, ZONE), zones=[ZONE])
    assert counts == {AgentStatus.IDLE: 1, AgentStatus.WORKING: 1}


async def test_freeing_a_slot_does_not_revive_a_stale_agent(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 1})
    agent_harness.make_silent()
    stale = await agent_harness.refresh_status()
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -1})
    after = await agent_harness.read()
    assert after == msgspec.structs.replace(stale, held=0)


async def test_draining_agent_gets_no_tasks_and_terminates_after_its_last_one(agent_harness: AgentHarness) -> None:
    await agent_harness.register(max_concurrent_tasks=5)
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 2})
    draining = await agent_harness.terminate(graceful=True)
    assert (draining.status, draining.draining, agents.free_slots(draining)) == (State.IDLE, 1, 0)
    problem = agents.claim_problem(draining)
    assert problem is not None and problem.code == "agent_draining"
    await agent_harness.terminate(graceful=True)
    await agent_harness.heartbeat()
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -1})
    assert (await agent_harness.read()).status is State.IDLE
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -1})
    ended = await agent_harness.read()
    assert (ended.status, ended.status_reason, ended.look_at) == (State.TERMINATED, "finished", None)
    assert await agent_harness.event_types() == ["agent.registered", "agent.draining", "agent.terminated"]
    [event] = [event for event in await agent_harness.runtime.read_log() if event.type == "agent.terminated"]
    assert msgspec.json.decode(event.data) == {"graceful": True, "reason": "finished"}
    problem = agents.claim_problem(ended)
    assert problem is not None and problem.code == "agent_terminated"


async def test_termination_is_immediate_if_forced_or_without_held_tasks(agent_harness: AgentHarness) -> None:
    for name, graceful in (("a", False), ("b", True)):
        await agent_harness.register(name)
        if not graceful:
            await agent_harness.adjust_held({(ZONE, name): 1})
        assert (await agent_harness.terminate(name, graceful=graceful)).status is State.TERMINATED
        await agent_harness.terminate(name)
        assert await agent_harness.event_types(name) == ["agent.registered", "agent.terminated"]
    assert await agent_harness.refresh_status() == await agent_harness.read()
    assert await problem_code(agent_harness.terminate("missing")) == "agent_not_found"


async def test_role_decides_who_may_terminate_agents_and_issue_tokens(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    assert await problem_code(agent_harness.terminate(caller=agent_caller())) == "forbidden_role"
    for caller in (agent_caller(), user_caller()):
        assert await problem_code(agent_harness.issue_token(caller=caller)) == "forbidden_role"
    assert await agent_harness.issue_token(caller=user_caller(Role.ADMIN)) > 0
    [event] = [event for event in await agent_harness.runtime.read_log() if event.type == "agent.token_issued"]
    assert set(msgspec.json.decode(event.data)) == {"expiresAt", "forAttempt"}
    assert await problem_code(agent_harness.issue_token("missing")) == "agent_not_found"
    await agent_harness.terminate(caller=user_caller())
    assert await problem_code(agent_harness.issue_token()) == "agent_terminated"


async def test_callers_of_another_zone_cannot_see_the_agent(
    agent_harness: AgentHarness, runtime: RuntimeHarness
) -> None:
    await runtime.put_zone("other-zone")
    await agent_harness.register()
    outsider = user_caller(Role.OWNER, "other-zone")
    for request in (
        agent_harness.read(caller=outsider),
        agent_harness.register(caller=outsider),
        agent_harness.list_ids(caller=outsider),
    ):
        assert await problem_code(request) == "workspace_not_found"
    assert (
        await problem_code(agent_harness.refresh_lane.submit(RefreshStatus(zone_id="other-zone", agent_id=AGENT_ID)))
        == "agent_not_found"
    )


async def test_filters_apply_before_the_limit(agent_harness: AgentHarness) -> None:
    for n in range(6):
        await agent_harness.register(
            f"a{n}", coordinator_enabled=n % 2 == 0, capabilities=["even"] if n % 2 == 0 else []
        )
    assert await agent_harness.list_ids(limit=2, coordinator_enabled=False) == ["a1", "a3"]
    assert await agent_harness.list_ids(limit=2, capability="even", after="a0") == ["a2", "a4"]
    await agent_harness.terminate("a4")
    assert await agent_harness.list_ids(limit=1, status=AgentStatus.TERMINATED) == ["a4"]
    assert await agent_harness.list_ids(status=AgentStatus.ERROR) == []
