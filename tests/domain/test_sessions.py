"""Spawning, on both engines: what is stored, what each bound admits, keys, and exactness under concurrency."""

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

Outcome = Spawned | BaseException


async def gathered(keel: RuntimeHarness, *asks: Spawn) -> list[Outcome]:
    """Submitted in one breath, so that they share a batch as far as batches go."""
    return await asyncio.gather(*(keel.spawn_lane.submit(one) for one in asks), return_exceptions=True)


def created(outcomes: list[Outcome]) -> list[Session]:
    return [outcome.session for outcome in outcomes if isinstance(outcome, Spawned) and outcome.created]


# -- what is stored


async def test_a_spawned_session_reads_back_as_it_was_answered(runtime: RuntimeHarness) -> None:
    asked = spawn_command(
        kind="service",
        capabilities='["a","b"]',
        metadata='{"n":1,"text":"ü \\" \\\\ 🜁"}',
        ttl_seconds=60,
        session_sid="sid-9",
    )
    made = (await runtime.spawn_lane.submit(asked)).session
    assert await runtime.read_session(made) == made
    assert (made.id, made.root_id, made.depth, made.status) == (asked.id, asked.id, 0, State.ACTIVE)
    assert (made.kind, made.session_sid, made.ttl_seconds) == ("service", "sid-9", 60)
    assert (made.capabilities, made.metadata) == (asked.capabilities, asked.metadata)
    assert made.expires_at == made.spawned_at + 60_000
    assert msgspec.json.decode(made.limits, type=Limits) == Limits(**CEILINGS)


async def test_a_spawn_writes_its_session_its_counts_and_its_event_together(runtime: RuntimeHarness) -> None:
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


async def test_a_refused_spawn_writes_nothing(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(max_sessions=0)
    before = await runtime.read_log()
    with pytest.raises(LimitReached):
        await runtime.spawn(key="k", digest="d")
    assert await runtime.read_log() == before
    for table in ("agent_sessions", "admission_counts", "idempotency_keys"):
        assert runtime.database.count(table) == 0


async def test_a_child_never_outlives_its_parent(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn(ttl_seconds=60)
    child = await runtime.spawn(parent_id=root.id, ttl_seconds=3_600)
    assert child.expires_at == root.expires_at


async def test_refusals_cost_their_neighbours_nothing(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("small", max_sessions=1)
    outcomes = await gathered(
        runtime,
        spawn_command(),
        spawn_command("nowhere"),
        spawn_command(parent_id="nobody"),
        spawn_command("small"),
        spawn_command("small"),
        spawn_command(),
    )
    assert result_names(outcomes) == [
        "Spawned",
        "zone_not_found",
        "parent_not_found",
        "Spawned",
        "agent_zone_limit_exceeded",
        "Spawned",
    ]
    assert_counts_match_rows(runtime.database)


async def test_a_frozen_zone_admits_nobody(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    runtime.database.execute("update zones set frozen = 1 where id = ?", ZONE)
    for parent_id in (None, root.id):
        with pytest.raises(Frozen) as refused:
            await runtime.spawn(parent_id=parent_id)
        assert refused.value.code == "zone_frozen"


async def test_a_suspended_session_parents_nothing_and_keeps_its_place(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(max_sessions=1)
    root = await runtime.spawn()
    runtime.database.execute("update agent_sessions set status = 'suspended' where id = ?", root.id)
    with pytest.raises(NotFound) as refused:
        await runtime.spawn(parent_id=root.id)
    assert refused.value.code == "parent_not_found"
    with pytest.raises(LimitReached):
        await runtime.spawn()


async def test_another_zones_session_cannot_parent(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign = await runtime.spawn("other")
    with pytest.raises(NotFound) as refused:
        await runtime.spawn(parent_id=foreign.id)
    assert refused.value.code == "parent_not_found"


async def test_a_token_of_an_ended_session_spawns_nothing(runtime: RuntimeHarness) -> None:
    bearer = await runtime.spawn()
    assert await runtime.spawn(caller=caller(session_id=bearer.id))
    await runtime.terminate(bearer)
    with pytest.raises(Problem) as refused:
        await runtime.spawn(caller=caller(session_id=bearer.id))
    assert refused.value.code == "session_ended"


# -- every bound, through the database


async def fill(keel: RuntimeHarness, bound: str, limit: int) -> tuple[list[Session], LimitReached]:
    """A root and children under it until the bound refuses; for depth, each under the one before."""
    made = [await keel.spawn()]
    await keel.put_zone(**{bound: limit})
    with pytest.raises(LimitReached) as refused:
        for _ in range(limit + 1):
            made.append(await keel.spawn(parent_id=made[-1 if bound == "max_depth" else 0].id))
    return made, refused.value


@pytest.mark.parametrize("bound", list(CEILINGS))
async def test_each_bound_admits_up_to_its_limit_over_many_batches(runtime: RuntimeHarness, bound: str) -> None:
    made, refusal = await fill(runtime, bound, 3)
    assert refusal.members["bound"] == bound
    assert refusal.members["limit"] == refusal.members["used"] == 3
    # In the zone, the application and the tree the root takes a place of its own.
    only_children = bound in ("max_children", "max_concurrent", "max_depth")
    assert len(made) == 3 + only_children
    assert runtime.database.count("agent_sessions") == len(made)
    assert_counts_match_rows(runtime.database)


@pytest.mark.parametrize("bound", sorted(CEILINGS.keys() - {"max_depth", "max_tree_spawns"}))
async def test_what_ends_frees_its_place_and_only_its_own(runtime: RuntimeHarness, bound: str) -> None:
    made, _ = await fill(runtime, bound, 3)
    await runtime.terminate(made[-1])
    await runtime.spawn(parent_id=made[0].id)
    with pytest.raises(LimitReached):
        await runtime.spawn(parent_id=made[0].id)
    assert_counts_match_rows(runtime.database)


async def test_a_tree_cannot_spawn_and_end_and_spawn_for_ever(runtime: RuntimeHarness) -> None:
    made, _ = await fill(runtime, "max_tree_spawns", 3)
    await runtime.terminate(made[-1])
    with pytest.raises(LimitReached) as refused:
        await runtime.spawn(parent_id=made[0].id)
    assert refused.value.code == "agent_tree_spawns_exceeded"
    assert await runtime.spawn(), "a new tree has a bound of its own"


async def test_lowered_limits_stop_nobody_who_runs_and_raised_ones_let_in_at_once(runtime: RuntimeHarness) -> None:
    await runtime.spawn_tree(3)
    await runtime.put_zone(max_sessions=2)
    with pytest.raises(LimitReached) as refused:
        await runtime.spawn()
    assert (refused.value.members["limit"], refused.value.members["used"]) == (2, 4)
    assert runtime.database.count("agent_sessions", "status = 'active'") == 4
    await runtime.put_zone(max_sessions=5)
    assert await runtime.spawn()


# -- keys


async def test_of_twenty_concurrent_spawns_with_one_key_exactly_one_creates(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        outcomes = await gathered(runtime, *(spawn_command(key=f"k{number}", digest="d") for _ in range(20)))
        assert len(created(outcomes)) == 1
        assert len({outcome.session.id for outcome in outcomes if isinstance(outcome, Spawned)}) == 1
    assert runtime.database.count("agent_sessions") == ROUNDS
    assert len(await runtime.read_log()) == 1 + ROUNDS


async def test_of_twenty_spawns_with_one_key_through_three_replicas_exactly_one_creates(postgres_url: str) -> None:
    async with (
        open_runtime(postgres_url) as one,
        open_runtime(postgres_url) as two,
        open_runtime(postgres_url) as three,
    ):
        await one.put_zone()
        replicas = (one, two, three)
        for number in range(ROUNDS):
            asks = [spawn_command(key=f"k{number}", digest="d") for _ in range(20)]
            submitted = [replicas[i % 3].spawn_lane.submit(asked) for i, asked in enumerate(asks)]
            outcomes: list[Outcome] = list(await asyncio.gather(*submitted))
            assert len(created(outcomes)) == 1
        assert one.database.count("agent_sessions") == ROUNDS


async def test_a_replay_shows_the_same_session_also_when_the_zone_is_full(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(max_sessions=1)
    first = await runtime.spawn_lane.submit(spawn_command(key="k", digest="d"))
    again = await runtime.spawn_lane.submit(spawn_command(key="k", digest="d"))
    assert (first.created, again.created) == (True, False)
    assert again.session == first.session


async def test_the_same_key_with_another_body_conflicts_and_writes_nothing(runtime: RuntimeHarness) -> None:
    await runtime.spawn(key="k", digest="one")
    with pytest.raises(KeyConflict):
        await runtime.spawn(key="k", digest="two")
    assert runtime.database.count("agent_sessions") == 1


@pytest.mark.parametrize("how", ["ended", "expired"])
async def test_a_key_is_free_again_when_its_session_is_over(runtime: RuntimeHarness, how: str) -> None:
    first = await runtime.spawn(key="k", digest="one")
    if how == "ended":
        await runtime.terminate(first)
    else:
        runtime.database.expire_sessions(first)
    second = await runtime.spawn_lane.submit(spawn_command(key="k", digest="two"))
    assert second.created
    assert second.session.id != first.id
    assert not (await runtime.spawn_lane.submit(spawn_command(key="k", digest="two"))).created


async def test_a_refusal_binds_no_key(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(max_sessions=0)
    with pytest.raises(LimitReached):
        await runtime.spawn(key="k", digest="one")
    await runtime.put_zone(max_sessions=1)
    assert (await runtime.spawn_lane.submit(spawn_command(key="k", digest="two"))).created


async def test_a_key_is_scoped_by_zone_and_application(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    outcomes = await gathered(
        runtime,
        spawn_command(key="k", digest="1"),
        spawn_command(key="k", digest="2", application_id="b"),
        spawn_command("other", key="k", digest="3"),
    )
    assert len(created(outcomes)) == 3


# -- exactness under concurrency


def assert_exactly(outcomes: list[Outcome], admitted: int, bound: str) -> None:
    refusals = [outcome for outcome in outcomes if isinstance(outcome, LimitReached)]
    assert len(created(outcomes)) == admitted
    assert len(refusals) == len(outcomes) - admitted
    assert {refusal.members["bound"] for refusal in refusals} == {bound}


async def test_a_hundred_concurrent_spawns_at_a_limit_of_8_admit_exactly_8(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        zone_id = f"round-{number}"
        await runtime.put_zone(zone_id, max_concurrent=8)
        root = await runtime.spawn(zone_id)
        outcomes = await gathered(runtime, *(spawn_command(zone_id, parent_id=root.id) for _ in range(100)))
        assert_exactly(outcomes, 8, "max_concurrent")
    assert_counts_match_rows(runtime.database)


async def test_a_hundred_concurrent_spawns_through_three_replicas_admit_exactly_8(postgres_url: str) -> None:
    # Small batches, so that the replicas really take turns at the zone's lock instead of one taking all.
    rigging = RuntimeOptions(settings=EngineSettings(batch_max=7))
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(open_runtime(postgres_url, rigging)) for _ in range(3)]
        for number in range(ROUNDS):
            zone_id = f"round-{number}"
            await replicas[0].put_zone(zone_id, max_concurrent=8)
            root = await replicas[0].spawn(zone_id)
            submitted = [
                replicas[i % 3].spawn_lane.submit(spawn_command(zone_id, parent_id=root.id)) for i in range(100)
            ]
            outcomes = await asyncio.gather(*submitted, return_exceptions=True)
            assert_exactly(outcomes, 8, "max_concurrent")
        assert_counts_match_rows(replicas[0].database)


async def test_spawns_and_endings_at_once_through_three_replicas_leave_exact_counts(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(3)]
        await replicas[0].put_zone(max_concurrent=8)
        root = await replicas[0].spawn()

        async def come_and_go(replica: RuntimeHarness) -> int:
            made = 0
            for _ in range(15):
                try:
                    child = await replica.spawn(parent_id=root.id)
                except LimitReached:
                    continue
                made += 1
                await replica.terminate(child)
            return made

        made = await asyncio.gather(*(come_and_go(replica) for replica in replicas for _ in range(6)))
        side = replicas[0].database
        assert side.count("agent_sessions", "status = 'active'") == 1
        assert side.count("agent_sessions") == 1 + sum(made)
        assert_counts_match_rows(side)
