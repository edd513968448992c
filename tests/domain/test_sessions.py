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
from tests.support.asking import APP, ZONE, ask, caller
from tests.support.keel import Keel, Rigging, assert_counts_are_what_the_rows_say, codes, keel_on
from tests.support.rounds import ROUNDS

Outcome = Spawned | BaseException


async def gathered(keel: Keel, *asks: Spawn) -> list[Outcome]:
    """Submitted in one breath, so that they share a batch as far as batches go."""
    return await asyncio.gather(*(keel.spawns.submit(one) for one in asks), return_exceptions=True)


def created(outcomes: list[Outcome]) -> list[Session]:
    return [outcome.session for outcome in outcomes if isinstance(outcome, Spawned) and outcome.created]


# -- what is stored


async def test_a_spawned_session_reads_back_as_it_was_answered(keel: Keel) -> None:
    asked = ask(
        kind="service",
        capabilities='["a","b"]',
        metadata='{"n":1,"text":"ü \\" \\\\ 🜁"}',
        ttl_seconds=60,
        session_sid="sid-9",
    )
    made = (await keel.spawns.submit(asked)).session
    assert await keel.show(made) == made
    assert (made.id, made.root_id, made.depth, made.status) == (asked.id, asked.id, 0, State.ACTIVE)
    assert (made.kind, made.session_sid, made.ttl_seconds) == ("service", "sid-9", 60)
    assert (made.capabilities, made.metadata) == (asked.capabilities, asked.metadata)
    assert made.expires_at == made.spawned_at + 60_000
    assert msgspec.json.decode(made.limits, type=Limits) == Limits(**CEILINGS)


async def test_a_spawn_writes_its_session_its_counts_and_its_event_together(keel: Keel) -> None:
    root = await keel.spawn()
    child = await keel.spawn(parent_id=root.id, trace="00-aa-bb-01", caller=caller())
    assert_counts_are_what_the_rows_say(keel.side)
    [_, first, second] = await keel.log()
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


async def test_a_refused_spawn_writes_nothing(keel: Keel) -> None:
    await keel.zone(max_sessions=0)
    before = await keel.log()
    with pytest.raises(LimitReached):
        await keel.spawn(key="k", digest="d")
    assert await keel.log() == before
    for table in ("agent_sessions", "admission_counts", "idempotency_keys"):
        assert keel.side.count(table) == 0


async def test_a_child_never_outlives_its_parent(keel: Keel) -> None:
    root = await keel.spawn(ttl_seconds=60)
    child = await keel.spawn(parent_id=root.id, ttl_seconds=3_600)
    assert child.expires_at == root.expires_at


async def test_refusals_cost_their_neighbours_nothing(keel: Keel) -> None:
    await keel.zone("small", max_sessions=1)
    outcomes = await gathered(keel, ask(), ask("nowhere"), ask(parent_id="nobody"), ask("small"), ask("small"), ask())
    assert codes(outcomes) == [
        "Spawned",
        "zone_not_found",
        "parent_not_found",
        "Spawned",
        "agent_zone_limit_exceeded",
        "Spawned",
    ]
    assert_counts_are_what_the_rows_say(keel.side)


async def test_a_frozen_zone_admits_nobody(keel: Keel) -> None:
    root = await keel.spawn()
    keel.side.run("update zones set frozen = 1 where id = ?", ZONE)
    for parent_id in (None, root.id):
        with pytest.raises(Frozen) as refused:
            await keel.spawn(parent_id=parent_id)
        assert refused.value.code == "zone_frozen"


async def test_a_suspended_session_parents_nothing_and_keeps_its_place(keel: Keel) -> None:
    await keel.zone(max_sessions=1)
    root = await keel.spawn()
    keel.side.run("update agent_sessions set status = 'suspended' where id = ?", root.id)
    with pytest.raises(NotFound) as refused:
        await keel.spawn(parent_id=root.id)
    assert refused.value.code == "parent_not_found"
    with pytest.raises(LimitReached):
        await keel.spawn()


async def test_another_zones_session_cannot_parent(keel: Keel) -> None:
    await keel.zone("other")
    foreign = await keel.spawn("other")
    with pytest.raises(NotFound) as refused:
        await keel.spawn(parent_id=foreign.id)
    assert refused.value.code == "parent_not_found"


async def test_a_token_of_an_ended_session_spawns_nothing(keel: Keel) -> None:
    bearer = await keel.spawn()
    assert await keel.spawn(caller=caller(session_id=bearer.id))
    await keel.end(bearer)
    with pytest.raises(Problem) as refused:
        await keel.spawn(caller=caller(session_id=bearer.id))
    assert refused.value.code == "session_ended"


# -- every bound, through the database


async def fill(keel: Keel, bound: str, limit: int) -> tuple[list[Session], LimitReached]:
    """A root and children under it until the bound refuses; for depth, each under the one before."""
    made = [await keel.spawn()]
    await keel.zone(**{bound: limit})
    with pytest.raises(LimitReached) as refused:
        for _ in range(limit + 1):
            made.append(await keel.spawn(parent_id=made[-1 if bound == "max_depth" else 0].id))
    return made, refused.value


@pytest.mark.parametrize("bound", list(CEILINGS))
async def test_each_bound_admits_up_to_its_limit_over_many_batches(keel: Keel, bound: str) -> None:
    made, refusal = await fill(keel, bound, 3)
    assert refusal.members["bound"] == bound
    assert refusal.members["limit"] == refusal.members["used"] == 3
    # In the zone, the application and the tree the root takes a place of its own.
    only_children = bound in ("max_children", "max_concurrent", "max_depth")
    assert len(made) == 3 + only_children
    assert keel.side.count("agent_sessions") == len(made)
    assert_counts_are_what_the_rows_say(keel.side)


@pytest.mark.parametrize("bound", sorted(CEILINGS.keys() - {"max_depth", "max_tree_spawns"}))
async def test_what_ends_frees_its_place_and_only_its_own(keel: Keel, bound: str) -> None:
    made, _ = await fill(keel, bound, 3)
    await keel.end(made[-1])
    await keel.spawn(parent_id=made[0].id)
    with pytest.raises(LimitReached):
        await keel.spawn(parent_id=made[0].id)
    assert_counts_are_what_the_rows_say(keel.side)


async def test_a_tree_cannot_spawn_and_end_and_spawn_for_ever(keel: Keel) -> None:
    made, _ = await fill(keel, "max_tree_spawns", 3)
    await keel.end(made[-1])
    with pytest.raises(LimitReached) as refused:
        await keel.spawn(parent_id=made[0].id)
    assert refused.value.code == "agent_tree_spawns_exceeded"
    assert await keel.spawn(), "a new tree has a bound of its own"


async def test_lowered_limits_stop_nobody_who_runs_and_raised_ones_let_in_at_once(keel: Keel) -> None:
    await keel.tree(3)
    await keel.zone(max_sessions=2)
    with pytest.raises(LimitReached) as refused:
        await keel.spawn()
    assert (refused.value.members["limit"], refused.value.members["used"]) == (2, 4)
    assert keel.side.count("agent_sessions", "status = 'active'") == 4
    await keel.zone(max_sessions=5)
    assert await keel.spawn()


# -- keys


async def test_of_twenty_concurrent_spawns_with_one_key_exactly_one_creates(keel: Keel) -> None:
    for number in range(ROUNDS):
        outcomes = await gathered(keel, *(ask(key=f"k{number}", digest="d") for _ in range(20)))
        assert len(created(outcomes)) == 1
        assert len({outcome.session.id for outcome in outcomes if isinstance(outcome, Spawned)}) == 1
    assert keel.side.count("agent_sessions") == ROUNDS
    assert len(await keel.log()) == 1 + ROUNDS


async def test_of_twenty_spawns_with_one_key_through_three_replicas_exactly_one_creates(postgres_url: str) -> None:
    async with keel_on(postgres_url) as one, keel_on(postgres_url) as two, keel_on(postgres_url) as three:
        await one.zone()
        replicas = (one, two, three)
        for number in range(ROUNDS):
            asks = [ask(key=f"k{number}", digest="d") for _ in range(20)]
            submitted = [replicas[i % 3].spawns.submit(asked) for i, asked in enumerate(asks)]
            outcomes: list[Outcome] = list(await asyncio.gather(*submitted))
            assert len(created(outcomes)) == 1
        assert one.side.count("agent_sessions") == ROUNDS


async def test_a_replay_shows_the_same_session_also_when_the_zone_is_full(keel: Keel) -> None:
    await keel.zone(max_sessions=1)
    first = await keel.spawns.submit(ask(key="k", digest="d"))
    again = await keel.spawns.submit(ask(key="k", digest="d"))
    assert (first.created, again.created) == (True, False)
    assert again.session == first.session


async def test_the_same_key_with_another_body_conflicts_and_writes_nothing(keel: Keel) -> None:
    await keel.spawn(key="k", digest="one")
    with pytest.raises(KeyConflict):
        await keel.spawn(key="k", digest="two")
    assert keel.side.count("agent_sessions") == 1


@pytest.mark.parametrize("how", ["ended", "expired"])
async def test_a_key_is_free_again_when_its_session_is_over(keel: Keel, how: str) -> None:
    first = await keel.spawn(key="k", digest="one")
    if how == "ended":
        await keel.end(first)
    else:
        keel.side.expire(first)
    second = await keel.spawns.submit(ask(key="k", digest="two"))
    assert second.created
    assert second.session.id != first.id
    assert not (await keel.spawns.submit(ask(key="k", digest="two"))).created


async def test_a_refusal_binds_no_key(keel: Keel) -> None:
    await keel.zone(max_sessions=0)
    with pytest.raises(LimitReached):
        await keel.spawn(key="k", digest="one")
    await keel.zone(max_sessions=1)
    assert (await keel.spawns.submit(ask(key="k", digest="two"))).created


async def test_a_key_is_scoped_by_zone_and_application(keel: Keel) -> None:
    await keel.zone("other")
    outcomes = await gathered(
        keel, ask(key="k", digest="1"), ask(key="k", digest="2", application_id="b"), ask("other", key="k", digest="3")
    )
    assert len(created(outcomes)) == 3


# -- exactness under concurrency


def assert_exactly(outcomes: list[Outcome], admitted: int, bound: str) -> None:
    refusals = [outcome for outcome in outcomes if isinstance(outcome, LimitReached)]
    assert len(created(outcomes)) == admitted
    assert len(refusals) == len(outcomes) - admitted
    assert {refusal.members["bound"] for refusal in refusals} == {bound}


async def test_a_hundred_concurrent_spawns_at_a_limit_of_8_admit_exactly_8(keel: Keel) -> None:
    for number in range(ROUNDS):
        zone_id = f"round-{number}"
        await keel.zone(zone_id, max_concurrent=8)
        root = await keel.spawn(zone_id)
        outcomes = await gathered(keel, *(ask(zone_id, parent_id=root.id) for _ in range(100)))
        assert_exactly(outcomes, 8, "max_concurrent")
    assert_counts_are_what_the_rows_say(keel.side)


async def test_a_hundred_concurrent_spawns_through_three_replicas_admit_exactly_8(postgres_url: str) -> None:
    # Small batches, so that the replicas really take turns at the zone's lock instead of one taking all.
    rigging = Rigging(settings=EngineSettings(batch_max=7))
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(keel_on(postgres_url, rigging)) for _ in range(3)]
        for number in range(ROUNDS):
            zone_id = f"round-{number}"
            await replicas[0].zone(zone_id, max_concurrent=8)
            root = await replicas[0].spawn(zone_id)
            submitted = [replicas[i % 3].spawns.submit(ask(zone_id, parent_id=root.id)) for i in range(100)]
            outcomes = await asyncio.gather(*submitted, return_exceptions=True)
            assert_exactly(outcomes, 8, "max_concurrent")
        assert_counts_are_what_the_rows_say(replicas[0].side)


async def test_spawns_and_endings_at_once_through_three_replicas_leave_exact_counts(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(keel_on(postgres_url)) for _ in range(3)]
        await replicas[0].zone(max_concurrent=8)
        root = await replicas[0].spawn()

        async def come_and_go(replica: Keel) -> int:
            made = 0
            for _ in range(15):
                try:
                    child = await replica.spawn(parent_id=root.id)
                except LimitReached:
                    continue
                made += 1
                await replica.end(child)
            return made

        made = await asyncio.gather(*(come_and_go(replica) for replica in replicas for _ in range(6)))
        side = replicas[0].side
        assert side.count("agent_sessions", "status = 'active'") == 1
        assert side.count("agent_sessions") == 1 + sum(made)
        assert_counts_are_what_the_rows_say(side)
