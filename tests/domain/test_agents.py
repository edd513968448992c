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
from tests.support.agency import AGENT, Agency, agent_caller, person
from tests.support.asking import ZONE, admin
from tests.support.keel import Keel


@pytest.fixture
def agency(keel: Keel) -> Agency:
    return Agency(keel)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as problem:
        await asked
    return problem.value.code


# -- registering -------------------------------------------------------------------------------------------------


async def test_a_new_agent_has_what_was_said_and_the_defaults_of_the_rest(agency: Agency) -> None:
    made = await agency.register(capabilities=["b", "a", "b"], labels={"z": "1", "y": "2"})
    assert made.created
    stored = await agency.show()
    assert stored == made.agent
    assert (stored.capabilities, stored.labels) == ('["b","a"]', '{"y":"2","z":"1"}')
    assert (stored.name, stored.max_concurrent_tasks, stored.coordinator_enabled) == (AGENT, 1, 1)
    assert (stored.heartbeat_interval_seconds, stored.stale_threshold_seconds) == (30, 180)
    assert (stored.status, stored.look_at) == (State.IDLE, made.at + 180_000)
    assert await agency.told() == ["agent.registered"]


async def test_what_is_not_said_again_stays_and_saying_nothing_new_tells_nothing(agency: Agency) -> None:
    await agency.register(capabilities=["a", "b"], model="m", pool="p")
    again = await agency.register(model=None, capabilities=["b", "c"])
    assert not again.created
    assert (again.agent.model, again.agent.pool, again.agent.capabilities) == (None, "p", '["b","c"]')
    assert await agency.show() == again.agent
    await agency.register(capabilities=["b", "c"])
    assert await agency.told() == ["agent.registered", "agent.changed"]
    assert [await agency.page(capability=each) for each in "abc"] == [[], [AGENT], [AGENT]]


async def test_of_those_who_register_one_agent_at_once_one_makes_it(agency: Agency) -> None:
    made = await asyncio.gather(*(agency.register(name=f"n{n}") for n in range(8)))
    assert [each.created for each in made].count(True) == 1
    assert (await agency.show()).name == made[-1].agent.name


async def test_a_launcher_is_chosen_by_rulers_alone_and_only_from_what_the_server_names(agency: Agency) -> None:
    assert await refused(agency.register(caller=person(), launcher="gateway")) == "forbidden_role"
    assert await refused(agency.register(launcher="rm")) == "unknown_launcher"
    await agency.register(caller=person(Role.ADMIN), launcher="gateway")
    for caller in (person(), agent_caller()):
        assert await refused(agency.register(caller=caller, launcher=None)) == "forbidden_role"
        assert await refused(agency.register(caller=caller, launcher="local")) == "forbidden_role"
        await agency.register(caller=caller, launcher="gateway", name="same")
    assert (await agency.show()).launcher == "gateway"


async def test_an_agent_changes_itself_alone_and_gives_itself_nothing(agency: Agency) -> None:
    itself = agent_caller()
    assert await refused(agency.register(caller=itself, capabilities=[])) == "agent_not_found"
    await agency.register(capabilities=["a", "b"])
    await agency.register("other")
    assert await refused(agency.register("other", itself, name="n")) == "agent_required"
    assert await refused(agency.register("third", itself)) == "agent_required"
    assert await refused(agency.register(caller=itself, capabilities=["a", "c"])) == "capabilities_not_allowed"
    changed = await agency.register(caller=itself, capabilities=["b"], max_concurrent_tasks=5)
    assert (changed.agent.capabilities, changed.agent.max_concurrent_tasks) == ('["b"]', 5)
    # What it has given away it does not get back by itself.
    assert await refused(agency.register(caller=itself, capabilities=["a", "b"])) == "capabilities_not_allowed"
    # The role of an agent without an agent to it acts as none.
    assert await refused(agency.register(caller=person(Role.AGENT), name="n")) == "agent_required"


async def test_one_that_was_terminated_begins_anew_and_its_own_token_does_not_begin_it(agency: Agency) -> None:
    await agency.register(capabilities=["root"], caller=person(Role.OWNER), launcher="local")
    await agency.terminate()
    assert await refused(agency.register(caller=agent_caller())) == "agent_ended"
    anew = await agency.register(caller=person())
    assert anew.created
    assert (anew.agent.status, anew.agent.terminated_at, anew.agent.status_reason) == (State.IDLE, None, None)
    assert (anew.agent.capabilities, anew.agent.launcher) == ("[]", None)
    assert await agency.page(capability="root") == []
    assert await agency.told() == ["agent.registered", "agent.terminated", "agent.registered"]


async def test_nothing_registers_in_a_zone_that_has_ended(agency: Agency, keel: Keel) -> None:
    await agency.register()
    await keel.stop(ends=True)
    assert await refused(agency.register("late")) == "zone_ended"
    assert await refused(agency.issue()) == "zone_ended"


# -- being heard of ----------------------------------------------------------------------------------------------


async def test_a_heartbeat_is_kept_as_what_was_said_last_and_writes_no_event(agency: Agency) -> None:
    await agency.register()
    agency.silent(seconds=60)
    beaten = await agency.beat(
        current_task_id="t", progress_percent=40, current_step="s", memory_mb=512, cpu_percent=7, metadata='{"a":1}'
    )
    assert not beaten.needs_refresh
    watched = await agency.watch()
    assert watched.agent == beaten.agent
    assert (watched.agent.current_task_id, watched.agent.progress_percent) == ("t", 40)
    assert (watched.agent.memory_mb, watched.agent.cpu_percent) == (512, 7)
    assert watched.at - watched.agent.last_seen_at < 60_000
    [row] = watched.recent
    assert (row.status, row.current_task_id, row.metadata_json) == (AgentHealth.HEALTHY, "t", '{"a":1}')
    assert row.next_expected_at == row.last_seen_at + 30_000
    assert await agency.told() == ["agent.registered"]


async def test_a_heartbeat_is_kept_when_it_tells_of_a_change_or_the_last_is_old(agency: Agency) -> None:
    await agency.register()
    for task in ("t", "t", "u", None, None):
        await agency.beat(current_task_id=task)
    assert [row.current_task_id for row in (await agency.watch()).recent] == [None, "u", "t"]
    agency.silent(seconds=11)
    for _ in range(3):
        await agency.beat()
    assert len((await agency.watch()).recent) == 4


async def test_heartbeats_of_a_batch_are_each_answered_and_the_last_word_counts(agency: Agency) -> None:
    for name in "ab":
        await agency.register(name)
    beats = [
        RecordHeartbeat(zone_id=ZONE, agent_id=name, caller=admin(), progress_percent=n)
        for n in range(4)
        for name in "axb"
    ]
    outcomes = await asyncio.gather(*map(agency.beats.submit, beats), return_exceptions=True)
    assert [each.code for each in outcomes if isinstance(each, Problem)] == ["agent_not_found"] * 4
    assert [(await agency.show(name)).progress_percent for name in "ab"] == [3, 3]


async def test_heartbeats_wait_for_nobody_who_holds_the_zone(agency: Agency, keel: Keel) -> None:
    await agency.register()
    if keel.store.kind == "sqlite":
        pytest.skip("SQLite has one writer: there is no lock of a zone to hold beside it")
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        held, done = asyncio.Event(), asyncio.Event()

        async def holding(tx: Transaction) -> None:
            await tx.read(zones.lock_statement(tx, [ZONE]))
            held.set()
            await done.wait()

        group.create_task(keel.engine.transact(holding, zones=[ZONE]))
        await held.wait()
        await agency.beat(progress_percent=1)
        done.set()


async def test_heartbeats_and_whoever_counts_what_agents_hold_never_wait_for_each_other_in_a_ring(
    agency: Agency,
) -> None:
    names = [f"{letter}{n}" for letter in ("a", "B", "-", "_") for n in range(5)]
    await asyncio.gather(*(agency.register(name) for name in names))
    for turn in (names, names[::-1]):
        await asyncio.gather(
            *(agency.beat(name) for name in turn),
            *(agency.hold({(ZONE, name): 1 for name in turn[n:]}) for n in range(5)),
            *(agency.beat(name) for name in turn[::-1]),
        )
    held = [(await agency.show(name)).held for name in names]
    assert held == [6, 7, 8, 9, 10, *([10] * 10), 10, 9, 8, 7, 6]


async def test_a_heartbeat_is_an_agents_own_or_a_persons(agency: Agency) -> None:
    await agency.register()
    await agency.register("other")
    await agency.beat(caller=agent_caller())
    await agency.beat(caller=person())
    assert await refused(agency.beat(caller=agent_caller("other"))) == "agent_required"
    assert await refused(agency.beat("nobody")) == "agent_not_found"
    assert await refused(agency.beat(caller=agent_caller(zone_id="elsewhere"))) == "workspace_not_found"
    await agency.terminate()
    assert await refused(agency.beat()) == "agent_terminated"
    assert await refused(agency.beat(caller=agent_caller())) == "agent_ended"


async def test_what_is_heard_of_agents_is_told_to_whoever_listens_in_this_process(agency: Agency) -> None:
    heard: list[Agent] = []
    agency.beater.listeners.append(heard.extend)
    await agency.register()
    await refused(agency.beat("nobody"))
    assert heard == []
    beaten = await agency.beat(current_task_id="t")
    assert heard == [beaten.agent]


async def test_kept_heartbeats_are_forgotten_when_they_are_old(agency: Agency) -> None:
    await agency.register()
    for task in ("t", "u", "v"):
        await agency.beat(current_task_id=task)
    assert await agency.sweeper(3_600_000).run_now(HEARTBEAT_RETENTION) == 0
    assert await agency.sweeper(-60_000).run_now(HEARTBEAT_RETENTION) == 3
    assert (await agency.watch()).recent == ()


# -- how it fares ------------------------------------------------------------------------------------------------


async def test_an_agent_that_fares_worse_and_better_says_so_once_each(agency: Agency) -> None:
    await agency.register()
    for health in (
        AgentHealth.HEALTHY,
        AgentHealth.DEGRADED,
        AgentHealth.DEGRADED,
        AgentHealth.HEALTHY,
        AgentHealth.HEALTHY,
    ):
        await agency.beat(status=health)
    assert await agency.told() == ["agent.registered", "agent.degraded", "agent.recovered"]
    await agency.beat(status=AgentHealth.DEGRADED)
    assert (await agency.show()).status is State.DEGRADED


async def test_one_that_is_not_heard_of_for_too_long_is_lost_and_a_late_heartbeat_has_it_back(agency: Agency) -> None:
    await agency.register()
    agency.silent()
    lost = await agency.look()
    assert (lost.status, lost.status_reason, lost.look_at) == (State.ERROR, "stale", None)
    assert agents.free_slots(lost) == 0
    assert (await agency.look()) == lost
    await agency.beat()
    back = await agency.show()
    assert (back.status, back.status_reason) == (State.IDLE, None)
    assert back.look_at == back.last_seen_at + 180_000
    assert await agency.told() == ["agent.registered", "agent.stale", "agent.revived"]


async def test_to_register_again_is_to_be_back(agency: Agency) -> None:
    await agency.register()
    agency.silent()
    await agency.look()
    again = await agency.register()
    assert (again.created, again.agent.status) == (False, State.IDLE)
    assert await agency.told() == ["agent.registered", "agent.stale", "agent.revived"]


async def test_whoever_looks_finds_those_whose_time_it_is_and_puts_off_those_who_were_heard_of(
    agency: Agency, keel: Keel
) -> None:
    for name in "abc":
        await agency.register(name)
        agency.silent(name, seconds=200)
    await agency.beat("a")
    await agency.register("d")
    found = await keel.everywhere.read(lambda tx: agents.list_liveness_due(tx, 10))
    assert sorted(each.id for each in found) == ["a", "b", "c"]
    assert await keel.everywhere.read(agents.next_liveness_due) == 0
    for each in found:
        await agency.look(each.id)
    assert await keel.everywhere.read(lambda tx: agents.list_liveness_due(tx, 10)) == []
    assert await keel.everywhere.read(agents.count_stale) == 2
    pause = await keel.everywhere.read(agents.next_liveness_due)
    assert pause is not None and 100_000 < pause <= 180_000
    assert (await agency.show("a")).status is State.IDLE


async def test_a_heartbeat_that_comes_while_somebody_looks_is_lost_to_nobody(agency: Agency) -> None:
    for _ in range(4):
        await agency.register()
        agency.silent()
        await asyncio.gather(agency.look(), agency.beat(), agency.look(), agency.beat())
        assert (await agency.show()).status is State.IDLE


async def test_an_agent_that_is_launched_for_each_task_is_silent_only_while_it_has_one(
    agency: Agency, keel: Keel
) -> None:
    await agency.register(launcher="gateway", stale_threshold_seconds=60)
    agency.silent()
    idle = await agency.look()
    assert idle.status is State.IDLE
    assert idle.look_at is not None
    await agency.hold({(ZONE, AGENT): 1})
    agency.silent()
    lost = await agency.look()
    assert (lost.status, lost.look_at is None) == (State.ERROR, False)
    await agency.hold({(ZONE, AGENT): -1})
    # Nobody but a launcher could have it heard of again: so it is given another chance.
    agency.silent()
    assert (await agency.look()).status is State.IDLE
    [place] = await keel.everywhere.read(lambda tx: agents.list_launch_zones(tx, {"gateway": "", "none": ""}, 10))
    assert place == ("gateway", ZONE)
    [found] = await keel.everywhere.read(lambda tx: agents.list_launchable(tx, [place], 10))
    assert found.id == AGENT
    await agency.hold({(ZONE, AGENT): 1})
    assert await keel.everywhere.read(lambda tx: agents.list_launchable(tx, [place], 10)) == []


# -- what it holds, and its end ----------------------------------------------------------------------------------


async def test_what_agents_hold_is_counted(agency: Agency) -> None:
    await agency.register(max_concurrent_tasks=3)
    await agency.register("b")
    await agency.hold({(ZONE, AGENT): 2, (ZONE, "b"): 1, (ZONE, "nobody"): 1})
    held = await agency.show()
    assert (held.held, displayed_status(held), agents.free_slots(held)) == (2, AgentStatus.WORKING, 1)
    assert await agency.page(status=AgentStatus.WORKING) == ["a", "b"]
    await agency.hold({(ZONE, AGENT): -5, (ZONE, "b"): 0})
    assert [(await agency.show(name)).held for name in "ab"] == [0, 1]
    assert await agency.page(status=AgentStatus.IDLE) == ["a"]
    counts = await agency.keel.engine.read(lambda tx: agents.count_by_status(tx, ZONE), zones=[ZONE])
    assert counts == {AgentStatus.IDLE: 1, AgentStatus.WORKING: 1}


async def test_what_is_taken_from_one_that_was_lost_does_not_bring_it_back(agency: Agency) -> None:
    await agency.register()
    await agency.hold({(ZONE, AGENT): 1})
    agency.silent()
    lost = await agency.look()
    await agency.hold({(ZONE, AGENT): -1})
    after = await agency.show()
    assert after == msgspec.structs.replace(lost, held=0)


async def test_one_that_drains_takes_nothing_more_and_ends_with_its_last_task(agency: Agency) -> None:
    await agency.register(max_concurrent_tasks=5)
    await agency.hold({(ZONE, AGENT): 2})
    drains = await agency.terminate(graceful=True)
    assert (drains.status, drains.draining, agents.free_slots(drains)) == (State.IDLE, 1, 0)
    problem = agents.claim_problem(drains)
    assert problem is not None and problem.code == "agent_draining"
    await agency.terminate(graceful=True)
    await agency.beat()
    await agency.hold({(ZONE, AGENT): -1})
    assert (await agency.show()).status is State.IDLE
    await agency.hold({(ZONE, AGENT): -1})
    ended = await agency.show()
    assert (ended.status, ended.status_reason, ended.look_at) == (State.TERMINATED, "over", None)
    assert await agency.told() == ["agent.registered", "agent.draining", "agent.terminated"]
    [told] = [each for each in await agency.keel.log() if each.type == "agent.terminated"]
    assert msgspec.json.decode(told.data) == {"graceful": True, "reason": "over"}
    problem = agents.claim_problem(ended)
    assert problem is not None and problem.code == "agent_terminated"


async def test_terminating_ends_at_once_or_at_once_if_there_is_nothing_to_wait_for(agency: Agency) -> None:
    for name, graceful in (("a", False), ("b", True)):
        await agency.register(name)
        if not graceful:
            await agency.hold({(ZONE, name): 1})
        assert (await agency.terminate(name, graceful=graceful)).status is State.TERMINATED
        await agency.terminate(name)
        assert await agency.told(name) == ["agent.registered", "agent.terminated"]
    assert await agency.look() == await agency.show()
    assert await refused(agency.terminate("nobody")) == "agent_not_found"


async def test_who_may_end_agents_and_have_their_tokens_is_decided_by_role(agency: Agency) -> None:
    await agency.register()
    assert await refused(agency.terminate(caller=agent_caller())) == "forbidden_role"
    for caller in (agent_caller(), person()):
        assert await refused(agency.issue(caller=caller)) == "forbidden_role"
    assert await agency.issue(caller=person(Role.ADMIN)) > 0
    [told] = [each for each in await agency.keel.log() if each.type == "agent.token_issued"]
    assert set(msgspec.json.decode(told.data)) == {"expiresAt", "forAttempt"}
    assert await refused(agency.issue("nobody")) == "agent_not_found"
    await agency.terminate(caller=person())
    assert await refused(agency.issue()) == "agent_terminated"


async def test_what_another_zone_has_is_nobodys_business(agency: Agency, keel: Keel) -> None:
    await keel.zone("elsewhere")
    await agency.register()
    stranger = person(Role.OWNER, "elsewhere")
    for asked in (agency.show(caller=stranger), agency.register(caller=stranger), agency.page(caller=stranger)):
        assert await refused(asked) == "workspace_not_found"
    assert await refused(agency.looks.submit(RefreshStatus(zone_id="elsewhere", agent_id=AGENT))) == "agent_not_found"


async def test_filters_apply_before_the_limit(agency: Agency) -> None:
    for n in range(6):
        await agency.register(f"a{n}", coordinator_enabled=n % 2 == 0, capabilities=["even"] if n % 2 == 0 else [])
    assert await agency.page(limit=2, coordinator_enabled=False) == ["a1", "a3"]
    assert await agency.page(limit=2, capability="even", after="a0") == ["a2", "a4"]
    await agency.terminate("a4")
    assert await agency.page(limit=1, status=AgentStatus.TERMINATED) == ["a4"]
    assert await agency.page(status=AgentStatus.ERROR) == []
