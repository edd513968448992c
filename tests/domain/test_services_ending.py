"""Services and the end of those who registered them, on both engines: gone with the last, and led by the living."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.services.model import ServiceHealth, ServiceUpdate
from quarterdeck.domain.sessions.model import Terminate
from tests.support.asking import ZONE, admin
from tests.support.keel import Keel, codes
from tests.support.rounds import ROUNDS
from tests.support.serving import OTHER, URL, Serving, is_there, registrations, replicas, told, told_types

HEALTHY = ServiceUpdate(health=ServiceHealth.HEALTHY)


async def test_a_service_goes_with_the_last_session_that_registered_it_in_the_same_transaction(
    keel: Keel, serving: Serving
) -> None:
    first, second = await keel.spawn(), await keel.spawn()
    made = await serving.make(first)
    await serving.register(second)
    await serving.end(first)
    led = await serving.show(made)
    assert led.agent_id == second.id
    await serving.end(second)
    assert not await is_there(serving, made)
    assert registrations(keel) == 0
    assert await told_types(keel, made) == ["register", "change", "change", "unregister"]
    events = await keel.log()
    gone = (await told(keel, made))[-1]
    assert (gone.from_state, gone.to_state) == ("starting", "unregistered")
    assert msgspec.json.decode(gone.data)["reason"] == "session_ended"
    assert gone.pos == events[-1].pos
    assert (events[-2].type, events[-2].subject, events[-2].at) == ("session.terminate", second.id, gone.at)


async def test_a_follower_that_ends_leaves_the_leader_where_it_is(keel: Keel, serving: Serving) -> None:
    first, second = await keel.spawn(), await keel.spawn()
    made = await serving.make(first)
    await serving.register(second)
    await serving.end(second)
    assert (await serving.show(made)).agent_id == first.id
    assert registrations(keel) == 1


async def test_a_tree_that_ends_takes_its_services_along_and_leaves_those_of_others(
    keel: Keel, serving: Serving
) -> None:
    tree, outside = await keel.tree(3), await keel.spawn()
    shared = await serving.make(tree[1])
    await serving.register(tree[2])
    await serving.register(outside)
    inside = [await serving.make(tree[n], endpoint_url=f"{URL}/{n}") for n in range(4)]
    await serving.end(tree[0])
    assert [await is_there(serving, service) for service in [shared, *inside]] == [True, *[False] * 4]
    assert (await serving.show(shared)).agent_id == outside.id
    assert await told_types(keel, shared) == ["register", "change", "change", "change"]
    assert registrations(keel) == 1


async def test_what_the_application_registered_itself_stays_until_it_is_unregistered(
    keel: Keel, serving: Serving
) -> None:
    session = await keel.spawn()
    made = await serving.make()
    assert made.agent_id is None
    assert (await serving.make(session)).agent_id == session.id
    await serving.end(session)
    assert (await serving.show(made)).agent_id is None
    await serving.end_zone(ZONE, ends=False)
    assert await is_there(serving, made)
    await serving.unregister(made)
    assert not await is_there(serving, made)
    assert registrations(keel) == 0


async def test_a_zone_that_ends_takes_along_what_its_applications_registered(keel: Keel, serving: Serving) -> None:
    session = await keel.spawn(OTHER)
    own, theirs = await serving.make(zone_id=OTHER), await serving.make(session, endpoint_url=f"{URL}/x")
    elsewhere = await serving.make()
    await serving.end_zone(OTHER)
    assert [await is_there(serving, one) for one in (own, theirs, elsewhere)] == [False, False, True]
    reasons = [msgspec.json.decode((await told(keel, one))[-1].data)["reason"] for one in (own, theirs)]
    assert reasons == ["zone_ended", "session_ended"]


async def test_what_has_expired_counts_for_nothing_before_any_sweep(keel: Keel, serving: Serving) -> None:
    expired, live = await keel.spawn(), await keel.spawn()
    made, shared = await serving.make(expired), await serving.make(expired, endpoint_url=f"{URL}/shared")
    await serving.register(live, endpoint_url=f"{URL}/shared")
    keel.side.expire(expired)
    assert not await is_there(serving, made)
    assert await is_there(serving, shared)
    assert await serving.page(session_id=expired.id) == []
    for ask in (
        serving.beat(made.id),
        serving.beat(None, session_id=expired.id),
        serving.beat(shared.id, session_id=expired.id),
        serving.change(shared, HEALTHY, session_id=expired.id),
        serving.show(shared, expired.id),
        serving.change(made, HEALTHY),
    ):
        with pytest.raises(Problem) as refusal:
            await ask
        assert refusal.value.code == "agent_service_not_found"
    # Registered again it is told that it had gone, whether or not the sweep has come.
    again = await serving.register(live)
    assert (again.created, again.service.id, again.service.agent_id) == (True, made.id, live.id)
    assert await told_types(keel, made) == ["register", "unregister", "register"]
    await serving.end(expired)
    assert await is_there(serving, made)
    assert (await serving.show(shared)).agent_id == live.id
    await serving.end(live)
    assert not await is_there(serving, made)


async def test_what_was_stamped_counts_for_nothing_before_it_is_settled(keel: Keel) -> None:
    serving = Serving(keel.store, chunk=2)
    tree = await keel.tree(4)
    made = await serving.make(tree[-1])
    ended = await serving.endings.submit(Terminate(ZONE, tree[0].id, "over", admin()))
    assert ended.cascade_id is not None
    assert registrations(keel) == 1, "it is stamped, and not settled"
    assert not await is_there(serving, made)
    with pytest.raises(Problem, match="no session"):
        await serving.register(tree[-1])
    await serving.end(tree[0])
    assert registrations(keel) == 0
    assert await told_types(keel, made) == ["register", "unregister"]
    await serving.lanes.drain()


async def test_a_cascade_settles_services_chunk_by_chunk_and_the_last_one_takes_them(keel: Keel) -> None:
    serving = Serving(keel.store, chunk=2)
    tree = await keel.tree(5)
    for session in tree:
        made = await serving.make(session)
    await serving.end(tree[0])
    assert (await told_types(keel, made)).count("unregister") == 1
    assert (await told_types(keel, made))[-1] == "unregister"
    assert not await is_there(serving, made)
    await serving.lanes.drain()


async def test_no_session_registers_and_ends_at_once_and_leaves_a_service_behind(keel: Keel, serving: Serving) -> None:
    for number in range(10 * ROUNDS):
        session = await keel.spawn()
        url = f"{URL}/{number}"
        outcomes = await asyncio.gather(
            *(serving.register(session, endpoint_url=url) for _ in range(3)),
            serving.end(session),
            *(serving.register(session, endpoint_url=url) for _ in range(3)),
            return_exceptions=True,
        )
        assert {*codes(outcomes)} <= {"RegisteredService", "agent_not_found", "NoneType"}
    assert registrations(keel) == 0
    assert await serving.page() == []


async def test_replicas_do_not_register_for_a_session_that_the_other_ends(postgres_url: str) -> None:
    async with replicas(postgres_url) as (keel, both):
        for number in range(10 * ROUNDS):
            session = await keel.spawn()
            url = f"{URL}/{number}"
            await asyncio.gather(
                *(both[0].register(session, endpoint_url=url) for _ in range(3)),
                both[1].end(session),
                return_exceptions=True,
            )
        assert registrations(keel) == 0
        assert await both[0].page() == []
