"""Spawns on both engines: stored rows, bounds, idempotency keys, and exact counts under concurrency."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Frozen, KeyConflict, LimitReached, NotFound, Problem
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned, State
from quarterdeck.domain.zones.model import CEILINGS, Limits
from quarterdeck.engine.settings import EngineSettings
from tests.support.builders import APP, ZONE, caller, spawn_command
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime, result_names

Result = Spawned | BaseException


async def submit_all(runtime: RuntimeHarness, *commands: Spawn) -> list[Result]:
    """Submit all commands at once, so that they share batches."""
    return await asyncio.gather(*(runtime.spawn_lane.submit(command) for command in commands), return_exceptions=True)


def created_sessions(results: list[Result]) -> list[Session]:
    return [result.session for result in results if isinstance(result, Spawned) and result.created]


# -- stored rows


async def test_spawned_session_reads_back_as_returned(runtime: RuntimeHarness) -> None:
    command = spawn_command(
        kind="service",
        capabilities='["a","b"]',
        metadata='{"n":1,"text":"ü \\" \\\\ 🜁"}',
        ttl_seconds=60,
        session_sid="sid-9",
    )
    session = (await runtime.spawn_lane.submit(command)).session
    assert await runtime.read_session(session) == session
    assert (session.id, session.root_id, session.depth, session.status) == (command.id, command.id, 0, State.ACTIVE)
    assert (session.kind, session.session_sid, session.ttl_seconds) == ("service", "sid-9", 60)
    assert (session.capabilities, session.metadata) == (command.capabilities, command.metadata)
    assert session.expires_at == session.spawned_at + 60_000
    assert msgspec.json.decode(session.limits, type=Limits) == Limits(**CEILINGS)


async def test_spawn_writes_session_counts_and_event_together(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    child = await runtime.spawn(parent_id=root.id, trace="00-aa-bb-01", caller=caller())
    assert_counts_match_rows(runtime.database)
    [_, first, second] = await runtime.read_log()
    assert (first.type, first.subject, first.to_state) == ("session.spawn", root.id, "active")
    assert (second.subject, second.from_state, second.trace) == (child.id, None, "00-aa-bb-01")
    assert (second.zone_id, second.actor, second.at) == (ZONE, "tester", child.spawned_at)
    assert msgspec.json.decode(second.data) == {
        "application_id": APP,
        "parent_id": root.id,
        "root_id": root.id,
        "session_sid": "sid",
        "depth": 1,
        "expires_at": iso(child.expires_at),
    }


async def test_refused_spawn_writes_nothing(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(max_sessions=0)
    before = await runtime.read_log()
    with pytest.raises(LimitReached):
        await runtime.spawn(key="k", digest="d")
    assert await runtime.read_log() == before
    for table in ("agent_sessions", "admission_counts", "idempotency_keys"):
        assert runtime.database.count(table) == 0


async def test_child_expires_no_later_than_its_parent(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn(ttl_seconds=60)
    child = await runtime.spawn(parent_id=root.id, ttl_seconds=3_600)
    assert child.expires_at == root.expires_at


async def test_refused_spawn_does_not_affect_others_in_its_batch(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("small", max_sessions=1)
    results = await submit_all(
        runtime,
        spawn_command(),
        spawn_command("unknown-zone"),
        spawn_command(parent_id="unknown-session"),
        spawn_command("small"),
        spawn_command("small"),
        spawn_command(),
    )
    assert result_names(results) == [
        "Spawned",
        "zone_not_found",
        "parent_not_found",
        "Spawned",
        "agent_zone_limit_exceeded",
        "Spawned",
    ]
    assert_counts_match_rows(runtime.database)


async def test_frozen_zone_refuses_spawns(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    runtime.database.execute("update zones set frozen = 1 where id = ?", ZONE)
    for parent_id in (None, root.id):
        with pytest.raises(Frozen) as error:
            await runtime.spawn(parent_id=parent_id)
        assert error.value.code == "zone_frozen"


async def test_suspended_session_cannot_have_new_children_and_still_counts(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(max_sessions=1)
    root = await runtime.spawn()
    runtime.database.execute("update agent_sessions set status = 'suspended' where id = ?", root.id)
    with pytest.raises(NotFound) as error:
        await runtime.spawn(parent_id=root.id)
    assert error.value.code == "parent_not_found"
    with pytest.raises(LimitReached):
        await runtime.spawn()


async def test_session_of_another_zone_cannot_be_a_parent(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign = await runtime.spawn("other")
    with pytest.raises(NotFound) as error:
        await runtime.spawn(parent_id=foreign.id)
    assert error.value.code == "parent_not_found"


async def test_token_of_an_ended_session_cannot_spawn(runtime: RuntimeHarness) -> None:
    bearer = await runtime.spawn()
    assert await runtime.spawn(caller=caller(session_id=bearer.id))
    await runtime.terminate(bearer)
    with pytest.raises(Problem) as error:
        await runtime.spawn(caller=caller(session_id=bearer.id))
    assert error.value.code == "session_ended"


# -- bounds


async def fill(runtime: RuntimeHarness, bound: str, limit: int) -> tuple[list[Session], LimitReached]:
    """Spawn a root and children until the bound refuses. For max_depth each child is below the one before."""
    sessions = [await runtime.spawn()]
    await runtime.put_zone(**{bound: limit})
    with pytest.raises(LimitReached) as error:
        for _ in range(limit + 1):
            sessions.append(await runtime.spawn(parent_id=sessions[-1 if bound == "max_depth" else 0].id))
    return sessions, error.value


@pytest.mark.parametrize("bound", list(CEILINGS))
async def test_each_bound_admits_exactly_its_limit_over_many_batches(runtime: RuntimeHarness, bound: str) -> None:
    sessions, refusal = await fill(runtime, bound, 3)
    assert refusal.members["bound"] == bound
    assert refusal.members["limit"] == refusal.members["used"] == 3
    # The root counts against the bounds of the zone, the application and the tree.
    only_children = bound in ("max_children", "max_concurrent", "max_depth")
    assert len(sessions) == 3 + only_children
    assert runtime.database.count("agent_sessions") == len(sessions)
    assert_counts_match_rows(runtime.database)


@pytest.mark.parametrize("bound", sorted(CEILINGS.keys() - {"max_depth", "max_tree_spawns"}))
async def test_terminated_session_frees_exactly_one_slot(runtime: RuntimeHarness, bound: str) -> None:
    sessions, _ = await fill(runtime, bound, 3)
    await runtime.terminate(sessions[-1])
    await runtime.spawn(parent_id=sessions[0].id)
    with pytest.raises(LimitReached):
        await runtime.spawn(parent_id=sessions[0].id)
    assert_counts_match_rows(runtime.database)


async def test_max_tree_spawns_counts_terminated_sessions(runtime: RuntimeHarness) -> None:
    sessions, _ = await fill(runtime, "max_tree_spawns", 3)
    await runtime.terminate(sessions[-1])
    with pytest.raises(LimitReached) as error:
        await runtime.spawn(parent_id=sessions[0].id)
    assert error.value.code == "agent_tree_spawns_exceeded"
    assert await runtime.spawn(), "every tree has its own bound"


async def test_lowered_limit_terminates_nothing_and_raised_limit_admits_at_once(runtime: RuntimeHarness) -> None:
    await runtime.spawn_tree(3)
    await runtime.put_zone(max_sessions=2)
    with pytest.raises(LimitReached) as error:
        await runtime.spawn()
    assert (error.value.members["limit"], error.value.members["used"]) == (2, 4)
    assert runtime.database.count("agent_sessions", "status = 'active'") == 4
    await runtime.put_zone(max_sessions=5)
    assert await runtime.spawn()


# -- idempotency keys


async def test_concurrent_spawns_with_one_key_create_one_session(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        results = await submit_all(runtime, *(spawn_command(key=f"k{number}", digest="d") for _ in range(20)))
        assert len(created_sessions(results)) == 1
        assert len({result.session.id for result in results if isinstance(result, Spawned)}) == 1
    assert runtime.database.count("agent_sessions") == ROUNDS
    assert len(await runtime.read_log()) == 1 + ROUNDS


async def test_spawns_with_one_key_through_three_replicas_create_one_session(postgres_url: str) -> None:
    async with (
        open_runtime(postgres_url) as one,
        open_runtime(postgres_url) as two,
        open_runtime(postgres_url) as three,
    ):
        await one.put_zone()
        replicas = (one, two, three)
        for number in range(ROUNDS):
            commands = [spawn_command(key=f"k{number}", digest="d") for _ in range(20)]
            submitted = [replicas[i % 3].spawn_lane.submit(command) for i, command in enumerate(commands)]
            results: list[Result] = list(await asyncio.gather(*submitted))
            assert len(created_sessions(results)) == 1
        assert one.database.count("agent_sessions") == ROUNDS


async def test_replay_returns_the_same_session_even_when_the_zone_is_full(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(max_sessions=1)
    first = await runtime.spawn_lane.submit(spawn_command(key="k", digest="d"))
    replayed = await runtime.spawn_lane.submit(spawn_command(key="k", digest="d"))
    assert (first.created, replayed.created) == (True, False)
    assert replayed.session == first.session


async def test_same_key_with_another_body_conflicts_and_writes_nothing(runtime: RuntimeHarness) -> None:
    await runtime.spawn(key="k", digest="one")
    with pytest.raises(KeyConflict):
        await runtime.spawn(key="k", digest="two")
    assert runtime.database.count("agent_sessions") == 1


@pytest.mark.parametrize("end", ["ended", "expired"])
async def test_key_is_free_again_after_its_session_ends(runtime: RuntimeHarness, end: str) -> None:
    first = await runtime.spawn(key="k", digest="one")
    if end == "ended":
        await runtime.terminate(first)
    else:
        runtime.database.expire_sessions(first)
    second = await runtime.spawn_lane.submit(spawn_command(key="k", digest="two"))
    assert second.created
    assert second.session.id != first.id
    assert not (await runtime.spawn_lane.submit(spawn_command(key="k", digest="two"))).created


async def test_refused_spawn_stores_no_key(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(max_sessions=0)
    with pytest.raises(LimitReached):
        await runtime.spawn(key="k", digest="one")
    await runtime.put_zone(max_sessions=1)
    assert (await runtime.spawn_lane.submit(spawn_command(key="k", digest="two"))).created


async def test_key_is_scoped_by_zone_and_application(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    results = await submit_all(
        runtime,
        spawn_command(key="k", digest="1"),
        spawn_command(key="k", digest="2", application_id="b"),
        spawn_command("other", key="k", digest="3"),
    )
    assert len(created_sessions(results)) == 3


# -- exactness under concurrency


def assert_admitted(results: list[Result], admitted: int, bound: str) -> None:
    refusals = [result for result in results if isinstance(result, LimitReached)]
    assert len(created_sessions(results)) == admitted
    assert len(refusals) == len(results) - admitted
    assert {refusal.members["bound"] for refusal in refusals} == {bound}


async def test_100_concurrent_spawns_at_a_limit_of_8_admit_exactly_8(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        zone_id = f"round-{number}"
        await runtime.put_zone(zone_id, max_concurrent=8)
        root = await runtime.spawn(zone_id)
        results = await submit_all(runtime, *(spawn_command(zone_id, parent_id=root.id) for _ in range(100)))
        assert_admitted(results, 8, "max_concurrent")
    assert_counts_match_rows(runtime.database)


async def test_100_concurrent_spawns_through_three_replicas_admit_exactly_8(postgres_url: str) -> None:
    # Small batches make the replicas alternate at the zone lock. One large batch would let one replica admit all.
    options = RuntimeOptions(settings=EngineSettings(batch_max=7))
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(open_runtime(postgres_url, options)) for _ in range(3)]
        for number in range(ROUNDS):
            zone_id = f"round-{number}"
            await replicas[0].put_zone(zone_id, max_concurrent=8)
            root = await replicas[0].spawn(zone_id)
            submitted = [
                replicas[i % 3].spawn_lane.submit(spawn_command(zone_id, parent_id=root.id)) for i in range(100)
            ]
            results = await asyncio.gather(*submitted, return_exceptions=True)
            assert_admitted(results, 8, "max_concurrent")
        assert_counts_match_rows(replicas[0].database)


async def test_concurrent_spawns_and_terminations_through_three_replicas_leave_exact_counts(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(3)]
        await replicas[0].put_zone(max_concurrent=8)
        root = await replicas[0].spawn()

        async def spawn_and_terminate(replica: RuntimeHarness) -> int:
            spawned = 0
            for _ in range(15):
                try:
                    child = await replica.spawn(parent_id=root.id)
                except LimitReached:
                    continue
                spawned += 1
                await replica.terminate(child)
            return spawned

        spawned = await asyncio.gather(*(spawn_and_terminate(replica) for replica in replicas for _ in range(6)))
        database = replicas[0].database
        assert database.count("agent_sessions", "status = 'active'") == 1
        assert database.count("agent_sessions") == 1 + sum(spawned)
        assert_counts_match_rows(database)
