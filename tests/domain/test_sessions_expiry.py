"""Expiry of sessions: an expired session stops counting immediately. The sweep only writes rows and events."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quarterdeck.core.caller import Bearer
from quarterdeck.core.clock import SECOND
from quarterdeck.core.errors import LimitReached, NotFound, Unauthenticated
from quarterdeck.domain.sessions.model import SessionRef, State
from quarterdeck.domain.zones.model import CEILINGS
from tests.support.builders import NOW, ZONE, admin, caller
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime

# -- before any sweep


async def test_expired_session_reads_as_terminated_before_any_sweep(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    other = await runtime.spawn()
    runtime.database.expire_sessions(root, child)
    expired = await runtime.read_session(root)
    assert (expired.status, expired.termination_reason) == (State.TERMINATED, "ttl_expired")
    assert expired.terminated_at == expired.expires_at
    assert [row.status for row in await runtime.read_subtree(root)] == [State.TERMINATED] * 2
    by_status = {status: {row.id for row in await runtime.list_sessions(status=status)} for status in (None, *State)}
    assert by_status == {
        None: {root.id, child.id, other.id},
        State.ACTIVE: {other.id},
        State.SUSPENDED: set(),
        State.TERMINATED: {root.id, child.id},
    }
    assert [row.status for row in await runtime.list_sessions(parent_id=root.id)] == [State.TERMINATED]
    assert await runtime.list_sessions(parent_id=root.id, status=State.ACTIVE) == []
    assert len(await runtime.list_sessions(application_id="app", status=State.TERMINATED)) == 2
    assert runtime.database.count("agent_sessions", "status = 'terminated'") == 0, "no sweep has run"


async def test_expired_session_cannot_have_children_and_its_token_is_invalid(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    runtime.database.expire_sessions(root)
    with pytest.raises(NotFound) as error:
        await runtime.spawn(parent_id=root.id)
    assert error.value.code == "parent_not_found"
    with pytest.raises(Unauthenticated):
        await runtime.spawn(caller=caller(session_id=root.id))
    with pytest.raises(Unauthenticated):
        await runtime.show_session_lane.submit(SessionRef(ZONE, root.id, Bearer(ZONE, root.id)))
    with pytest.raises(Unauthenticated):
        await runtime.list_sessions(bearer=Bearer(ZONE, root.id))


@pytest.mark.parametrize("bound", sorted(CEILINGS.keys() - {"max_depth", "max_tree_spawns"}))
async def test_expired_sessions_free_every_live_bound_before_any_sweep(runtime: RuntimeHarness, bound: str) -> None:
    root = await runtime.spawn()
    children = [await runtime.spawn(parent_id=root.id) for _ in range(3)]
    await runtime.put_zone(**{bound: 3 if bound in ("max_children", "max_concurrent") else 4})
    with pytest.raises(LimitReached):
        await runtime.spawn(parent_id=root.id)
    runtime.database.expire_sessions(*children[:2])
    for _ in range(2):
        assert await runtime.spawn(parent_id=root.id)
    with pytest.raises(LimitReached) as error:
        await runtime.spawn(parent_id=root.id)
    assert error.value.members["bound"] == bound
    assert error.value.members["used"] == error.value.members["limit"]
    assert_counts_match_rows(runtime.database)
    assert await runtime.run_sweep() == 2
    assert_counts_match_rows(runtime.database)


async def test_expired_sessions_still_count_against_max_tree_spawns(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    await runtime.put_zone(max_tree_spawns=2)
    runtime.database.expire_sessions(child)
    with pytest.raises(LimitReached) as error:
        await runtime.spawn(parent_id=root.id)
    assert error.value.members["bound"] == "max_tree_spawns"


async def test_session_ends_exactly_when_its_ttl_has_passed(sqlite_url: str) -> None:
    time = [NOW]
    async with open_runtime(sqlite_url, RuntimeOptions(clock=lambda: time[0])) as runtime:
        await runtime.put_zone(max_sessions=1)
        root = await runtime.spawn(ttl_seconds=5)
        time[0] = NOW + 5 * SECOND - 1
        assert (await runtime.read_session(root)).status is State.ACTIVE
        with pytest.raises(LimitReached):
            await runtime.spawn()
        time[0] += 1
        assert (await runtime.read_session(root)).status is State.TERMINATED
        assert await runtime.spawn(ttl_seconds=1)
        time[0] += 10 * SECOND
        assert await runtime.run_sweep() == 2
        assert (await runtime.read_session(root)).terminated_at == NOW + 5 * SECOND


# -- the sweep


async def test_sweep_terminates_expired_sessions_with_their_subtree(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(2, 2)
    other = await runtime.spawn()
    runtime.database.expire_sessions(*sessions)
    before = await runtime.read_session(sessions[0])
    assert await runtime.run_sweep() == 1, "the root ends its subtree"
    assert runtime.database.count("agent_sessions", "status = 'terminated'") == 7
    assert runtime.database.count("agent_sessions", "status = 'active'") == 1
    assert (await runtime.read_session(other)).status is State.ACTIVE
    after = await runtime.read_session(sessions[0])
    assert msgspec.structs.replace(after, updated_at=before.updated_at) == before, (
        "the sweep does not change how it reads"
    )
    ended = [event for event in await runtime.read_log() if event.type == "session.terminate"]
    assert {event.actor for event in ended} == {"sweep"}
    assert {msgspec.json.decode(event.data)["reason"] for event in ended} == {"ttl_expired"}
    assert ended[-1].subject == sessions[0].id
    assert_counts_match_rows(runtime.database)


async def test_sweep_of_an_expired_branch_leaves_its_live_parent(runtime: RuntimeHarness) -> None:
    root, left, right = await runtime.spawn_tree(2)
    runtime.database.expire_sessions(left)
    assert await runtime.run_sweep() == 1
    statuses = [(await runtime.read_session(row)).status for row in (root, left, right)]
    assert statuses == [State.ACTIVE, State.TERMINATED, State.ACTIVE]
    assert_counts_match_rows(runtime.database)


async def test_sweep_without_expired_sessions_writes_nothing(runtime: RuntimeHarness) -> None:
    await runtime.spawn_tree(2)
    log = await runtime.read_log()
    assert await runtime.run_sweep() == 0
    assert await runtime.read_log() == log


async def test_full_passes_are_repeated_until_all_zones_are_swept(runtime: RuntimeHarness) -> None:
    zones = [f"z{number}" for number in range(5)]
    for zone_id in zones:
        await runtime.put_zone(zone_id)
        runtime.database.expire_sessions(*[await runtime.spawn(zone_id) for _ in range(3)])
    assert await runtime.run_sweep(batch=4) == 15
    assert runtime.database.count("agent_sessions", "status <> 'terminated'") == 0
    assert await runtime.run_sweep(batch=4) == 0


async def test_suspended_sessions_expire_and_frozen_zones_are_swept(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    runtime.database.execute("update agent_sessions set status = 'suspended' where id = ?", root.id)
    runtime.database.execute("update zones set frozen = 1 where id = ?", ZONE)
    runtime.database.expire_sessions(root)
    assert await runtime.run_sweep() == 1
    assert runtime.database.scalar("select status from agent_sessions") == "terminated"


async def test_concurrent_sweeps_terminate_each_session_once(runtime: RuntimeHarness) -> None:
    for _ in range(ROUNDS):
        after = len(await runtime.read_log())
        sessions = [row for _ in range(5) for row in await runtime.spawn_tree(2)]
        runtime.database.expire_sessions(*sessions)
        await asyncio.gather(runtime.run_sweep(batch=2), runtime.run_sweep(batch=3))
        ended = [event.subject for event in await runtime.read_log(after) if event.type == "session.terminate"]
        assert sorted(ended) == sorted(row.id for row in sessions)
    assert_counts_match_rows(runtime.database)


async def test_sweeps_of_two_replicas_and_a_termination_end_each_session_once(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as two:
        await one.put_zone()
        for _ in range(ROUNDS):
            after = len(await one.read_log())
            sessions = [row for _ in range(5) for row in await one.spawn_tree(2)]
            one.database.expire_sessions(*sessions)
            terminations = [two.terminate(row) for row in sessions[:3]]
            await asyncio.gather(one.run_sweep(batch=2), two.run_sweep(batch=3), *terminations)
            ended = [event.subject for event in await one.read_log(after) if event.type == "session.terminate"]
            assert sorted(ended) == sorted(row.id for row in sessions)
        assert_counts_match_rows(one.database)


async def test_terminating_a_swept_session_reports_it_as_already_stopped(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    runtime.database.expire_sessions(root)
    await runtime.run_sweep()
    receipt = await runtime.terminate(root)
    assert (receipt.stopped, receipt.already_stopped) == (0, 1)
    assert admin().client_id != root.application_id
