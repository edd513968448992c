"""Time: what has expired is gone at that instant for everybody, and a sweep only makes the log say so."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quarterdeck.core.caller import Bearer
from quarterdeck.core.clock import SECOND
from quarterdeck.core.errors import LimitReached, NotFound, Unauthenticated
from quarterdeck.domain.sessions.model import SessionRef, State
from quarterdeck.domain.zones.model import CEILINGS
from tests.support.asking import NOW, ZONE, admin, caller
from tests.support.keel import Keel, Rigging, assert_counts_are_what_the_rows_say, keel_on
from tests.support.rounds import ROUNDS

# -- before any sweep


async def test_an_expired_session_reads_as_terminated_in_every_face_before_any_sweep(keel: Keel) -> None:
    root, child = await keel.tree(1)
    other = await keel.spawn()
    keel.side.expire(root, child)
    shown = await keel.show(root)
    assert (shown.status, shown.termination_reason) == (State.TERMINATED, "ttl_expired")
    assert shown.terminated_at == shown.expires_at
    assert [row.status for row in await keel.subtree(root)] == [State.TERMINATED] * 2
    by_status = {status: {row.id for row in await keel.page(status=status)} for status in (None, *State)}
    assert by_status == {
        None: {root.id, child.id, other.id},
        State.ACTIVE: {other.id},
        State.SUSPENDED: set(),
        State.TERMINATED: {root.id, child.id},
    }
    assert [row.status for row in await keel.page(parent_id=root.id)] == [State.TERMINATED]
    assert await keel.page(parent_id=root.id, status=State.ACTIVE) == []
    assert len(await keel.page(application_id="app", status=State.TERMINATED)) == 2
    assert keel.side.count("agent_sessions", "status = 'terminated'") == 0, "no sweep has come"


async def test_an_expired_session_parents_nothing_and_its_token_is_good_for_nothing(keel: Keel) -> None:
    root = await keel.spawn()
    keel.side.expire(root)
    with pytest.raises(NotFound) as refused:
        await keel.spawn(parent_id=root.id)
    assert refused.value.code == "parent_not_found"
    with pytest.raises(Unauthenticated):
        await keel.spawn(caller=caller(session_id=root.id))
    with pytest.raises(Unauthenticated):
        await keel.shown.submit(SessionRef(ZONE, root.id, Bearer(ZONE, root.id)))
    with pytest.raises(Unauthenticated):
        await keel.page(bearer=Bearer(ZONE, root.id))


@pytest.mark.parametrize("bound", sorted(CEILINGS.keys() - {"max_depth", "max_tree_spawns"}))
async def test_what_has_expired_frees_every_bound_on_the_living_before_any_sweep(keel: Keel, bound: str) -> None:
    root = await keel.spawn()
    children = [await keel.spawn(parent_id=root.id) for _ in range(3)]
    await keel.zone(**{bound: 3 if bound in ("max_children", "max_concurrent") else 4})
    with pytest.raises(LimitReached):
        await keel.spawn(parent_id=root.id)
    keel.side.expire(*children[:2])
    for _ in range(2):
        assert await keel.spawn(parent_id=root.id)
    with pytest.raises(LimitReached) as refused:
        await keel.spawn(parent_id=root.id)
    assert refused.value.members["bound"] == bound
    assert refused.value.members["used"] == refused.value.members["limit"]
    assert_counts_are_what_the_rows_say(keel.side)
    assert await keel.sweep() == 2
    assert_counts_are_what_the_rows_say(keel.side)


async def test_what_has_expired_was_admitted_all_the_same(keel: Keel) -> None:
    root, child = await keel.tree(1)
    await keel.zone(max_tree_spawns=2)
    keel.side.expire(child)
    with pytest.raises(LimitReached) as refused:
        await keel.spawn(parent_id=root.id)
    assert refused.value.members["bound"] == "max_tree_spawns"


async def test_time_alone_ends_a_session(sqlite_url: str) -> None:
    time = [NOW]
    async with keel_on(sqlite_url, Rigging(clock=lambda: time[0])) as keel:
        await keel.zone(max_sessions=1)
        root = await keel.spawn(ttl_seconds=5)
        time[0] = NOW + 5 * SECOND - 1
        assert (await keel.show(root)).status is State.ACTIVE
        with pytest.raises(LimitReached):
            await keel.spawn()
        time[0] += 1
        assert (await keel.show(root)).status is State.TERMINATED
        assert await keel.spawn(ttl_seconds=1)
        time[0] += 10 * SECOND
        assert await keel.sweep() == 2
        assert (await keel.show(root)).terminated_at == NOW + 5 * SECOND


# -- the sweep


async def test_the_sweep_ends_what_has_expired_with_its_subtree(keel: Keel) -> None:
    made = await keel.tree(2, 2)
    fresh = await keel.spawn()
    keel.side.expire(*made)
    before = await keel.show(made[0])
    assert await keel.sweep() == 1, "the topmost takes the rest along"
    assert keel.side.count("agent_sessions", "status = 'terminated'") == 7
    assert keel.side.count("agent_sessions", "status = 'active'") == 1
    assert (await keel.show(fresh)).status is State.ACTIVE
    after = await keel.show(made[0])
    assert msgspec.structs.replace(after, updated_at=before.updated_at) == before, "it reads as it read before"
    ended = [event for event in await keel.log() if event.type == "session.terminate"]
    assert {event.actor for event in ended} == {"sweep"}
    assert {msgspec.json.decode(event.data)["reason"] for event in ended} == {"ttl_expired"}
    assert ended[-1].subject == made[0].id
    assert_counts_are_what_the_rows_say(keel.side)


async def test_an_expired_branch_ends_and_its_living_parent_stays(keel: Keel) -> None:
    root, left, right = await keel.tree(2)
    keel.side.expire(left)
    assert await keel.sweep() == 1
    statuses = [(await keel.show(row)).status for row in (root, left, right)]
    assert statuses == [State.ACTIVE, State.TERMINATED, State.ACTIVE]
    assert_counts_are_what_the_rows_say(keel.side)


async def test_a_sweep_that_finds_nothing_moves_nothing(keel: Keel) -> None:
    await keel.tree(2)
    log = await keel.log()
    assert await keel.sweep() == 0
    assert await keel.log() == log


async def test_full_passes_are_repeated_until_all_zones_are_swept(keel: Keel) -> None:
    zones = [f"z{number}" for number in range(5)]
    for zone_id in zones:
        await keel.zone(zone_id)
        keel.side.expire(*[await keel.spawn(zone_id) for _ in range(3)])
    assert await keel.sweep(batch=4) == 15
    assert keel.side.count("agent_sessions", "status <> 'terminated'") == 0
    assert await keel.sweep(batch=4) == 0


async def test_suspended_sessions_expire_too_and_frozen_zones_are_swept(keel: Keel) -> None:
    root = await keel.spawn()
    keel.side.run("update agent_sessions set status = 'suspended' where id = ?", root.id)
    keel.side.run("update zones set frozen = 1 where id = ?", ZONE)
    keel.side.expire(root)
    assert await keel.sweep() == 1
    assert keel.side.one("select status from agent_sessions") == "terminated"


async def test_two_sweepers_at_once_end_everything_once(keel: Keel) -> None:
    for _ in range(ROUNDS):
        after = len(await keel.log())
        made = [row for _ in range(5) for row in await keel.tree(2)]
        keel.side.expire(*made)
        await asyncio.gather(keel.sweep(batch=2), keel.sweep(batch=3))
        ended = [event.subject for event in await keel.log(after) if event.type == "session.terminate"]
        assert sorted(ended) == sorted(row.id for row in made)
    assert_counts_are_what_the_rows_say(keel.side)


async def test_sweepers_of_two_replicas_and_a_callers_ending_do_each_other_no_harm(postgres_url: str) -> None:
    async with keel_on(postgres_url) as one, keel_on(postgres_url) as two:
        await one.zone()
        for _ in range(ROUNDS):
            after = len(await one.log())
            made = [row for _ in range(5) for row in await one.tree(2)]
            one.side.expire(*made)
            callers = [two.end(row) for row in made[:3]]
            await asyncio.gather(one.sweep(batch=2), two.sweep(batch=3), *callers)
            ended = [event.subject for event in await one.log(after) if event.type == "session.terminate"]
            assert sorted(ended) == sorted(row.id for row in made)
        assert_counts_are_what_the_rows_say(one.side)


async def test_a_swept_session_can_be_ended_again_by_its_owner(keel: Keel) -> None:
    root = await keel.spawn()
    keel.side.expire(root)
    await keel.sweep()
    receipt = await keel.end(root)
    assert (receipt.stopped, receipt.already_stopped) == (0, 1)
    assert admin().client_id != root.application_id
