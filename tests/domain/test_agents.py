"""Agents on both engines: registering, being heard of, being lost, draining and ending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

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
from tests.support.runtime import RuntimeHarness


@pytest.fixture
def agent_harness(runtime: RuntimeHarness) -> AgentHarness:
    return AgentHarness(runtime)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as problem:
        await asked
    return problem.value.code


# -- registering -------------------------------------------------------------------------------------------------


async def test_a_new_agent_has_what_was_said_and_the_defaults_of_the_rest(agent_harness: AgentHarness) -> None:
    made = await agent_harness.register(capabilities=["b", "a", "b"], labels={"z": "1", "y": "2"})
    assert made.created
    stored = await agent_harness.read()
    assert stored == made.agent
    assert (stored.capabilities, stored.labels) == ('["b","a"]', '{"y":"2","z":"1"}')
    assert (stored.name, stored.max_concurrent_tasks, stored.coordinator_enabled) == (AGENT_ID, 1, 1)
    assert (stored.heartbeat_interval_seconds, stored.stale_threshold_seconds) == (30, 180)
    assert (stored.status, stored.look_at) == (State.IDLE, made.at + 180_000)
    assert await agent_harness.event_types() == ["agent.registered"]


async def test_what_is_not_said_again_stays_and_saying_nothing_new_tells_nothing(agent_harness: AgentHarness) -> None:
    await agent_harness.register(capabilities=["a", "b"], model="m", pool="p")
    again = await agent_harness.register(model=None, capabilities=["b", "c"])
    assert not again.created
    assert (again.agent.model, again.agent.pool, again.agent.capabilities) == (None, "p", '["b","c"]')
    assert await agent_harness.read() == again.agent
    await agent_harness.register(capabilities=["b", "c"])
    assert await agent_harness.event_types() == ["agent.registered", "agent.changed"]
    assert [await agent_harness.list_ids(capability=each) for each in "abc"] == [[], [AGENT_ID], [AGENT_ID]]


async def test_of_those_who_register_one_agent_at_once_one_makes_it(agent_harness: AgentHarness) -> None:
    made = await asyncio.gather(*(agent_harness.register(name=f"n{n}") for n in range(8)))
    assert [each.created for each in made].count(True) == 1
    assert (await agent_harness.read()).name == made[-1].agent.name


async def test_a_launcher_is_chosen_by_rulers_alone_and_only_from_what_the_server_names(
    agent_harness: AgentHarness,
) -> None:
    assert await refused(agent_harness.register(caller=user_caller(), launcher="gateway")) == "forbidden_role"
    assert await refused(agent_harness.register(launcher="rm")) == "unknown_launcher"
    await agent_harness.register(caller=user_caller(Role.ADMIN), launcher="gateway")
    for caller in (user_caller(), agent_caller()):
        assert await refused(agent_harness.register(caller=caller, launcher=None)) == "forbidden_role"
        assert await refused(agent_harness.register(caller=caller, launcher="local")) == "forbidden_role"
        await agent_harness.register(caller=caller, launcher="gateway", name="same")
    assert (await agent_harness.read()).launcher == "gateway"


async def test_an_agent_changes_itself_alone_and_gives_itself_nothing(agent_harness: AgentHarness) -> None:
    itself = agent_caller()
    assert await refused(agent_harness.register(caller=itself, capabilities=[])) == "agent_not_found"
    await agent_harness.register(capabilities=["a", "b"])
    await agent_harness.register("other")
    assert await refused(agent_harness.register("other", itself, name="n")) == "agent_required"
    assert await refused(agent_harness.register("third", itself)) == "agent_required"
    assert await refused(agent_harness.register(caller=itself, capabilities=["a", "c"])) == "capabilities_not_allowed"
    changed = await agent_harness.register(caller=itself, capabilities=["b"], max_concurrent_tasks=5)
    assert (changed.agent.capabilities, changed.agent.max_concurrent_tasks) == ('["b"]', 5)
    # What it has given away it does not get back by itself.
    assert await refused(agent_harness.register(caller=itself, capabilities=["a", "b"])) == "capabilities_not_allowed"
    # The role of an agent without an agent to it acts as none.
    assert await refused(agent_harness.register(caller=user_caller(Role.AGENT), name="n")) == "agent_required"


async def test_one_that_was_terminated_begins_anew_and_its_own_token_does_not_begin_it(
    agent_harness: AgentHarness,
) -> None:
    await agent_harness.register(capabilities=["root"], caller=user_caller(Role.OWNER), launcher="local")
    await agent_harness.terminate()
    assert await refused(agent_harness.register(caller=agent_caller())) == "agent_ended"
    anew = await agent_harness.register(caller=user_caller())
    assert anew.created
    assert (anew.agent.status, anew.agent.terminated_at, anew.agent.status_reason) == (State.IDLE, None, None)
    assert (anew.agent.capabilities, anew.agent.launcher) == ("[]", None)
    assert await agent_harness.list_ids(capability="root") == []
    assert await agent_harness.event_types() == ["agent.registered", "agent.terminated", "agent.registered"]


async def test_nothing_registers_in_a_zone_that_has_ended(agent_harness: AgentHarness, runtime: RuntimeHarness) -> None:
    await agent_harness.register()
    await runtime.stop_zone(ends=True)
    assert await refused(agent_harness.register("late")) == "zone_ended"
    assert await refused(agent_harness.issue_token()) == "zone_ended"


# -- being heard of ----------------------------------------------------------------------------------------------


async def test_a_heartbeat_is_kept_as_what_was_said_last_and_writes_no_event(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    agent_harness.make_silent(seconds=60)
    beaten = await agent_harness.heartbeat(
        current_task_id="t", progress_percent=40, current_step="s", memory_mb=512, cpu_percent=7, metadata='{"a":1}'
    )
    assert not beaten.needs_refresh
    watched = await agent_harness.read_history()
    assert watched.agent == beaten.agent
    assert (watched.agent.current_task_id, watched.agent.progress_percent) == ("t", 40)
    assert (watched.agent.memory_mb, watched.agent.cpu_percent) == (512, 7)
    assert watched.at - watched.agent.last_seen_at < 60_000
    [row] = watched.recent
    assert (row.status, row.current_task_id, row.metadata_json) == (AgentHealth.HEALTHY, "t", '{"a":1}')
    assert row.next_expected_at == row.last_seen_at + 30_000
    assert await agent_harness.event_types() == ["agent.registered"]


async def test_a_heartbeat_is_kept_when_it_tells_of_a_change_or_the_last_is_old(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    for task in ("t", "t", "u", None, None):
        await agent_harness.heartbeat(current_task_id=task)
    assert [row.current_task_id for row in (await agent_harness.read_history()).recent] == [None, "u", "t"]
    agent_harness.make_silent(seconds=11)
    for _ in range(3):
        await agent_harness.heartbeat()
    assert len((await agent_harness.read_history()).recent) == 4


async def test_heartbeats_of_a_batch_are_each_answered_and_the_last_word_counts(agent_harness: AgentHarness) -> None:
    for name in "ab":
        await agent_harness.register(name)
    beats = [
        RecordHeartbeat(zone_id=ZONE, agent_id=name, caller=admin(), progress_percent=n)
        for n in range(4)
        for name in "axb"
    ]
    outcomes = await asyncio.gather(*map(agent_harness.heartbeat_lane.submit, beats), return_exceptions=True)
    assert [each.code for each in outcomes if isinstance(each, Problem)] == ["agent_not_found"] * 4
    assert [(await agent_harness.read(name)).progress_percent for name in "ab"] == [3, 3]


async def test_heartbeats_wait_for_nobody_who_holds_the_zone(
    agent_harness: AgentHarness, runtime: RuntimeHarness
) -> None:
    await agent_harness.register()
    if runtime.store.kind == "sqlite":
        pytest.skip("SQLite has one writer: there is no lock of a zone to hold beside it")
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        held, done = asyncio.Event(), asyncio.Event()

        async def holding(tx: Transaction) -> None:
            await tx.read(zones.lock_statement(tx, [ZONE]))
            held.set()
            await done.wait()

        group.create_task(runtime.engine.transact(holding, zones=[ZONE]))
        await held.wait()
        await agent_harness.heartbeat(progress_percent=1)
        done.set()


async def test_heartbeats_and_whoever_counts_what_agents_hold_never_wait_for_each_other_in_a_ring(
    agent_harness: AgentHarness,
) -> None:
    names = [f"{letter}{n}" for letter in ("a", "B", "-", "_") for n in range(5)]
    await asyncio.gather(*(agent_harness.register(name) for name in names))
    for turn in (names, names[::-1]):
        await asyncio.gather(
            *(agent_harness.heartbeat(name) for name in turn),
            *(agent_harness.adjust_held({(ZONE, name): 1 for name in turn[n:]}) for n in range(5)),
            *(agent_harness.heartbeat(name) for name in turn[::-1]),
        )
    held = [(await agent_harness.read(name)).held for name in names]
    assert held == [6, 7, 8, 9, 10, *([10] * 10), 10, 9, 8, 7, 6]


async def test_a_heartbeat_is_an_agents_own_or_a_persons(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    await agent_harness.register("other")
    await agent_harness.heartbeat(caller=agent_caller())
    await agent_harness.heartbeat(caller=user_caller())
    assert await refused(agent_harness.heartbeat(caller=agent_caller("other"))) == "agent_required"
    assert await refused(agent_harness.heartbeat("nobody")) == "agent_not_found"
    assert await refused(agent_harness.heartbeat(caller=agent_caller(zone_id="elsewhere"))) == "workspace_not_found"
    await agent_harness.terminate()
    assert await refused(agent_harness.heartbeat()) == "agent_terminated"
    assert await refused(agent_harness.heartbeat(caller=agent_caller())) == "agent_ended"


async def test_what_is_heard_of_agents_is_told_to_whoever_listens_in_this_process(agent_harness: AgentHarness) -> None:
    heard: list[Agent] = []
    agent_harness.heartbeat_recorder.listeners.append(heard.extend)
    await agent_harness.register()
    await refused(agent_harness.heartbeat("nobody"))
    assert heard == []
    beaten = await agent_harness.heartbeat(current_task_id="t")
    assert heard == [beaten.agent]


async def test_kept_heartbeats_are_forgotten_when_they_are_old(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    for task in ("t", "u", "v"):
        await agent_harness.heartbeat(current_task_id=task)
    assert await agent_harness.sweep_runner(3_600_000).run_now(HEARTBEAT_RETENTION) == 0
    assert await agent_harness.sweep_runner(-60_000).run_now(HEARTBEAT_RETENTION) == 3
    assert (await agent_harness.read_history()).recent == ()


# -- how it fares ------------------------------------------------------------------------------------------------


async def test_an_agent_that_fares_worse_and_better_says_so_once_each(agent_harness: AgentHarness) -> None:
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


async def test_one_that_is_not_heard_of_for_too_long_is_lost_and_a_late_heartbeat_has_it_back(
    agent_harness: AgentHarness,
) -> None:
    await agent_harness.register()
    agent_harness.make_silent()
    lost = await agent_harness.refresh_status()
    assert (lost.status, lost.status_reason, lost.look_at) == (State.ERROR, "stale", None)
    assert agents.free_slots(lost) == 0
    assert (await agent_harness.refresh_status()) == lost
    await agent_harness.heartbeat()
    back = await agent_harness.read()
    assert (back.status, back.status_reason) == (State.IDLE, None)
    assert back.look_at == back.last_seen_at + 180_000
    assert await agent_harness.event_types() == ["agent.registered", "agent.stale", "agent.revived"]


async def test_to_register_again_is_to_be_back(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    agent_harness.make_silent()
    await agent_harness.refresh_status()
    again = await agent_harness.register()
    assert (again.created, again.agent.status) == (False, State.IDLE)
    assert await agent_harness.event_types() == ["agent.registered", "agent.stale", "agent.revived"]


async def test_whoever_looks_finds_those_whose_time_it_is_and_puts_off_those_who_were_heard_of(
    agent_harness: AgentHarness, runtime: RuntimeHarness
) -> None:
    for name in "abc":
        await agent_harness.register(name)
        agent_harness.make_silent(name, seconds=200)
    await agent_harness.heartbeat("a")
    await agent_harness.register("d")
    found = await runtime.cross_zone_engine.read(lambda tx: agents.list_liveness_due(tx, 10))
    assert sorted(each.id for each in found) == ["a", "b", "c"]
    assert await runtime.cross_zone_engine.read(agents.next_liveness_due) == 0
    for each in found:
        await agent_harness.refresh_status(each.id)
    assert await runtime.cross_zone_engine.read(lambda tx: agents.list_liveness_due(tx, 10)) == []
    assert await runtime.cross_zone_engine.read(agents.count_stale) == 2
    pause = await runtime.cross_zone_engine.read(agents.next_liveness_due)
    assert pause is not None and 100_000 < pause <= 180_000
    assert (await agent_harness.read("a")).status is State.IDLE


async def test_a_heartbeat_that_comes_while_somebody_looks_is_lost_to_nobody(agent_harness: AgentHarness) -> None:
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


async def test_an_agent_that_is_launched_for_each_task_is_silent_only_while_it_has_one(
    agent_harness: AgentHarness, runtime: RuntimeHarness
) -> None:
    await agent_harness.register(launcher="gateway", stale_threshold_seconds=60)
    agent_harness.make_silent()
    idle = await agent_harness.refresh_status()
    assert idle.status is State.IDLE
    assert idle.look_at is not None
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 1})
    agent_harness.make_silent()
    lost = await agent_harness.refresh_status()
    assert (lost.status, lost.look_at is None) == (State.ERROR, False)
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -1})
    # Nobody but a launcher could have it heard of again: so it is given another chance.
    agent_harness.make_silent()
    assert (await agent_harness.refresh_status()).status is State.IDLE
    [place] = await runtime.cross_zone_engine.read(
        lambda tx: agents.list_launch_zones(tx, {"gateway": "", "none": ""}, 10)
    )
    assert place == ("gateway", ZONE)
    [found] = await runtime.cross_zone_engine.read(lambda tx: agents.list_launchable(tx, [place], 10))
    assert found.id == AGENT_ID
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 1})
    assert await runtime.cross_zone_engine.read(lambda tx: agents.list_launchable(tx, [place], 10)) == []


# -- what it holds, and its end ----------------------------------------------------------------------------------


async def test_what_agents_hold_is_counted(agent_harness: AgentHarness) -> None:
    await agent_harness.register(max_concurrent_tasks=3)
    await agent_harness.register("b")
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 2, (ZONE, "b"): 1, (ZONE, "nobody"): 1})
    held = await agent_harness.read()
    assert (held.held, displayed_status(held), agents.free_slots(held)) == (2, AgentStatus.WORKING, 1)
    assert await agent_harness.list_ids(status=AgentStatus.WORKING) == ["a", "b"]
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -5, (ZONE, "b"): 0})
    assert [(await agent_harness.read(name)).held for name in "ab"] == [0, 1]
    assert await agent_harness.list_ids(status=AgentStatus.IDLE) == ["a"]
    counts = await agent_harness.runtime.engine.read(lambda tx: agents.count_by_status(tx, ZONE), zones=[ZONE])
    assert counts == {AgentStatus.IDLE: 1, AgentStatus.WORKING: 1}


async def test_what_is_taken_from_one_that_was_lost_does_not_bring_it_back(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 1})
    agent_harness.make_silent()
    lost = await agent_harness.refresh_status()
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -1})
    after = await agent_harness.read()
    assert after == msgspec.structs.replace(lost, held=0)


async def test_one_that_drains_takes_nothing_more_and_ends_with_its_last_task(agent_harness: AgentHarness) -> None:
    await agent_harness.register(max_concurrent_tasks=5)
    await agent_harness.adjust_held({(ZONE, AGENT_ID): 2})
    drains = await agent_harness.terminate(graceful=True)
    assert (drains.status, drains.draining, agents.free_slots(drains)) == (State.IDLE, 1, 0)
    problem = agents.claim_problem(drains)
    assert problem is not None and problem.code == "agent_draining"
    await agent_harness.terminate(graceful=True)
    await agent_harness.heartbeat()
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -1})
    assert (await agent_harness.read()).status is State.IDLE
    await agent_harness.adjust_held({(ZONE, AGENT_ID): -1})
    ended = await agent_harness.read()
    assert (ended.status, ended.status_reason, ended.look_at) == (State.TERMINATED, "over", None)
    assert await agent_harness.event_types() == ["agent.registered", "agent.draining", "agent.terminated"]
    [told] = [each for each in await agent_harness.runtime.read_log() if each.type == "agent.terminated"]
    assert msgspec.json.decode(told.data) == {"graceful": True, "reason": "over"}
    problem = agents.claim_problem(ended)
    assert problem is not None and problem.code == "agent_terminated"


async def test_terminating_ends_at_once_or_at_once_if_there_is_nothing_to_wait_for(agent_harness: AgentHarness) -> None:
    for name, graceful in (("a", False), ("b", True)):
        await agent_harness.register(name)
        if not graceful:
            await agent_harness.adjust_held({(ZONE, name): 1})
        assert (await agent_harness.terminate(name, graceful=graceful)).status is State.TERMINATED
        await agent_harness.terminate(name)
        assert await agent_harness.event_types(name) == ["agent.registered", "agent.terminated"]
    assert await agent_harness.refresh_status() == await agent_harness.read()
    assert await refused(agent_harness.terminate("nobody")) == "agent_not_found"


async def test_who_may_end_agents_and_have_their_tokens_is_decided_by_role(agent_harness: AgentHarness) -> None:
    await agent_harness.register()
    assert await refused(agent_harness.terminate(caller=agent_caller())) == "forbidden_role"
    for caller in (agent_caller(), user_caller()):
        assert await refused(agent_harness.issue_token(caller=caller)) == "forbidden_role"
    assert await agent_harness.issue_token(caller=user_caller(Role.ADMIN)) > 0
    [told] = [each for each in await agent_harness.runtime.read_log() if each.type == "agent.token_issued"]
    assert set(msgspec.json.decode(told.data)) == {"expiresAt", "forAttempt"}
    assert await refused(agent_harness.issue_token("nobody")) == "agent_not_found"
    await agent_harness.terminate(caller=user_caller())
    assert await refused(agent_harness.issue_token()) == "agent_terminated"


async def test_what_another_zone_has_is_nobodys_business(agent_harness: AgentHarness, runtime: RuntimeHarness) -> None:
    await runtime.put_zone("elsewhere")
    await agent_harness.register()
    stranger = user_caller(Role.OWNER, "elsewhere")
    for asked in (
        agent_harness.read(caller=stranger),
        agent_harness.register(caller=stranger),
        agent_harness.list_ids(caller=stranger),
    ):
        assert await refused(asked) == "workspace_not_found"
    assert (
        await refused(agent_harness.refresh_lane.submit(RefreshStatus(zone_id="elsewhere", agent_id=AGENT_ID)))
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
