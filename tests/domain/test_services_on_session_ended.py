"""Services and the end of those who registered them, on both engines: gone with the last, and led by the living."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.services.model import ServiceHealth, ServiceUpdate
from quarterdeck.domain.sessions.model import Terminate
from tests.support.builders import ZONE, admin
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, result_names
from tests.support.services import (
    ENDPOINT_URL,
    OTHER_ZONE,
    ServiceHarness,
    count_registrations,
    event_types,
    events_of,
    is_registered,
    open_replicas,
)

HEALTHY = ServiceUpdate(health=ServiceHealth.HEALTHY)


async def test_a_service_goes_with_the_last_session_that_registered_it_in_the_same_transaction(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    made = await service_harness.register_service(first)
    await service_harness.register(second)
    await service_harness.terminate(first)
    led = await service_harness.read(made)
    assert led.agent_id == second.id
    await service_harness.terminate(second)
    assert not await is_registered(service_harness, made)
    assert count_registrations(runtime) == 0
    assert await event_types(runtime, made) == ["register", "change", "change", "unregister"]
    events = await runtime.read_log()
    gone = (await events_of(runtime, made))[-1]
    assert (gone.from_state, gone.to_state) == ("starting", "unregistered")
    assert msgspec.json.decode(gone.data)["reason"] == "session_ended"
    assert gone.pos == events[-1].pos
    assert (events[-2].type, events[-2].subject, events[-2].at) == ("session.terminate", second.id, gone.at)


async def test_a_follower_that_ends_leaves_the_leader_where_it_is(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    made = await service_harness.register_service(first)
    await service_harness.register(second)
    await service_harness.terminate(second)
    assert (await service_harness.read(made)).agent_id == first.id
    assert count_registrations(runtime) == 1


async def test_a_tree_that_ends_takes_its_services_along_and_leaves_those_of_others(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    tree, outside = await runtime.spawn_tree(3), await runtime.spawn()
    shared = await service_harness.register_service(tree[1])
    await service_harness.register(tree[2])
    await service_harness.register(outside)
    inside = [await service_harness.register_service(tree[n], endpoint_url=f"{ENDPOINT_URL}/{n}") for n in range(4)]
    await service_harness.terminate(tree[0])
    assert [await is_registered(service_harness, service) for service in [shared, *inside]] == [True, *[False] * 4]
    assert (await service_harness.read(shared)).agent_id == outside.id
    assert await event_types(runtime, shared) == ["register", "change", "change", "change"]
    assert count_registrations(runtime) == 1


async def test_what_the_application_registered_itself_stays_until_it_is_unregistered(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn()
    made = await service_harness.register_service()
    assert made.agent_id is None
    assert (await service_harness.register_service(session)).agent_id == session.id
    await service_harness.terminate(session)
    assert (await service_harness.read(made)).agent_id is None
    await service_harness.stop_zone(ZONE, ends=False)
    assert await is_registered(service_harness, made)
    await service_harness.unregister(made)
    assert not await is_registered(service_harness, made)
    assert count_registrations(runtime) == 0


async def test_a_zone_that_ends_takes_along_what_its_applications_registered(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn(OTHER_ZONE)
    own, theirs = (
        await service_harness.register_service(zone_id=OTHER_ZONE),
        await service_harness.register_service(session, endpoint_url=f"{ENDPOINT_URL}/x"),
    )
    elsewhere = await service_harness.register_service()
    await service_harness.stop_zone(OTHER_ZONE)
    assert [await is_registered(service_harness, one) for one in (own, theirs, elsewhere)] == [False, False, True]
    reasons = [msgspec.json.decode((await events_of(runtime, one))[-1].data)["reason"] for one in (own, theirs)]
    assert reasons == ["zone_ended", "session_ended"]


async def test_what_has_expired_counts_for_nothing_before_any_sweep(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    expired, live = await runtime.spawn(), await runtime.spawn()
    made, shared = (
        await service_harness.register_service(expired),
        await service_harness.register_service(expired, endpoint_url=f"{ENDPOINT_URL}/shared"),
    )
    await service_harness.register(live, endpoint_url=f"{ENDPOINT_URL}/shared")
    runtime.database.expire_sessions(expired)
    assert not await is_registered(service_harness, made)
    assert await is_registered(service_harness, shared)
    assert await service_harness.list_services(session_id=expired.id) == []
    for ask in (
        service_harness.heartbeat(made.id),
        service_harness.heartbeat(None, session_id=expired.id),
        service_harness.heartbeat(shared.id, session_id=expired.id),
        service_harness.update(shared, HEALTHY, session_id=expired.id),
        service_harness.read(shared, expired.id),
        service_harness.update(made, HEALTHY),
    ):
        with pytest.raises(Problem) as refusal:
            await ask
        assert refusal.value.code == "agent_service_not_found"
    # Registered again it is told that it had gone, whether or not the sweep has come.
    again = await service_harness.register(live)
    assert (again.created, again.service.id, again.service.agent_id) == (True, made.id, live.id)
    assert await event_types(runtime, made) == ["register", "unregister", "register"]
    await service_harness.terminate(expired)
    assert await is_registered(service_harness, made)
    assert (await service_harness.read(shared)).agent_id == live.id
    await service_harness.terminate(live)
    assert not await is_registered(service_harness, made)


async def test_what_was_stamped_counts_for_nothing_before_it_is_settled(runtime: RuntimeHarness) -> None:
    serving = ServiceHarness(runtime.store, chunk=2)
    tree = await runtime.spawn_tree(4)
    made = await serving.register_service(tree[-1])
    ended = await serving.terminate_lane.submit(Terminate(ZONE, tree[0].id, "over", admin()))
    assert ended.cascade_id is not None
    assert count_registrations(runtime) == 1, "it is stamped, and not settled"
    assert not await is_registered(serving, made)
    with pytest.raises(Problem, match="no session"):
        await serving.register(tree[-1])
    await serving.terminate(tree[0])
    assert count_registrations(runtime) == 0
    assert await event_types(runtime, made) == ["register", "unregister"]
    await serving.lanes.drain()


async def test_a_cascade_settles_services_chunk_by_chunk_and_the_last_one_takes_them(runtime: RuntimeHarness) -> None:
    serving = ServiceHarness(runtime.store, chunk=2)
    tree = await runtime.spawn_tree(5)
    for session in tree:
        made = await serving.register_service(session)
    await serving.terminate(tree[0])
    assert (await event_types(runtime, made)).count("unregister") == 1
    assert (await event_types(runtime, made))[-1] == "unregister"
    assert not await is_registered(serving, made)
    await serving.lanes.drain()


async def test_no_session_registers_and_ends_at_once_and_leaves_a_service_behind(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    for number in range(10 * ROUNDS):
        session = await runtime.spawn()
        url = f"{ENDPOINT_URL}/{number}"
        outcomes = await asyncio.gather(
            *(service_harness.register(session, endpoint_url=url) for _ in range(3)),
            service_harness.terminate(session),
            *(service_harness.register(session, endpoint_url=url) for _ in range(3)),
            return_exceptions=True,
        )
        assert {*result_names(outcomes)} <= {"RegisteredService", "agent_not_found", "NoneType"}
    assert count_registrations(runtime) == 0
    assert await service_harness.list_services() == []


async def test_replicas_do_not_register_for_a_session_that_the_other_ends(postgres_url: str) -> None:
    async with open_replicas(postgres_url) as (keel, both):
        for number in range(10 * ROUNDS):
            session = await keel.spawn()
            url = f"{ENDPOINT_URL}/{number}"
            await asyncio.gather(
                *(both[0].register(session, endpoint_url=url) for _ in range(3)),
                both[1].terminate(session),
                return_exceptions=True,
            )
        assert count_registrations(keel) == 0
        assert await both[0].list_services() == []
