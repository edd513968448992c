"""Services when their registrants end, on both engines: unregistered with the last, owned by a live one until then."""

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


async def test_service_is_unregistered_in_the_transaction_that_ends_its_last_registrant(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    service = await service_harness.register_service(first)
    await service_harness.register(second)
    await service_harness.terminate(first)
    current = await service_harness.read(service)
    assert current.agent_id == second.id
    await service_harness.terminate(second)
    assert not await is_registered(service_harness, service)
    assert count_registrations(runtime) == 0
    assert await event_types(runtime, service) == ["register", "change", "change", "unregister"]
    events = await runtime.read_log()
    event = (await events_of(runtime, service))[-1]
    assert (event.from_state, event.to_state) == ("starting", "unregistered")
    assert msgspec.json.decode(event.data)["reason"] == "session_ended"
    assert event.pos == events[-1].pos
    assert (events[-2].type, events[-2].subject, events[-2].at) == ("session.terminate", second.id, event.at)


async def test_termination_of_a_later_registrant_keeps_the_first_as_agent(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    service = await service_harness.register_service(first)
    await service_harness.register(second)
    await service_harness.terminate(second)
    assert (await service_harness.read(service)).agent_id == first.id
    assert count_registrations(runtime) == 1


async def test_terminated_tree_unregisters_only_services_without_other_registrants(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    tree, outside = await runtime.spawn_tree(3), await runtime.spawn()
    shared = await service_harness.register_service(tree[1])
    await service_harness.register(tree[2])
    await service_harness.register(outside)
    tree_services = [
        await service_harness.register_service(tree[n], endpoint_url=f"{ENDPOINT_URL}/{n}") for n in range(4)
    ]
    await service_harness.terminate(tree[0])
    assert [await is_registered(service_harness, service) for service in [shared, *tree_services]] == [
        True,
        *[False] * 4,
    ]
    assert (await service_harness.read(shared)).agent_id == outside.id
    assert await event_types(runtime, shared) == ["register", "change", "change", "change"]
    assert count_registrations(runtime) == 1


async def test_service_registered_by_the_application_stays_until_unregistered(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn()
    service = await service_harness.register_service()
    assert service.agent_id is None
    assert (await service_harness.register_service(session)).agent_id == session.id
    await service_harness.terminate(session)
    assert (await service_harness.read(service)).agent_id is None
    await service_harness.stop_zone(ZONE, ends=False)
    assert await is_registered(service_harness, service)
    await service_harness.unregister(service)
    assert not await is_registered(service_harness, service)
    assert count_registrations(runtime) == 0


async def test_ended_zone_unregisters_the_services_of_its_applications(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn(OTHER_ZONE)
    app_service, session_service = (
        await service_harness.register_service(zone_id=OTHER_ZONE),
        await service_harness.register_service(session, endpoint_url=f"{ENDPOINT_URL}/x"),
    )
    other_zone_service = await service_harness.register_service()
    await service_harness.stop_zone(OTHER_ZONE)
    assert [
        await is_registered(service_harness, service) for service in (app_service, session_service, other_zone_service)
    ] == [False, False, True]
    reasons = [
        msgspec.json.decode((await events_of(runtime, service))[-1].data)["reason"]
        for service in (app_service, session_service)
    ]
    assert reasons == ["zone_ended", "session_ended"]


async def test_expired_registrant_stops_counting_before_any_sweep(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    expired, live = await runtime.spawn(), await runtime.spawn()
    service, shared = (
        await service_harness.register_service(expired),
        await service_harness.register_service(expired, endpoint_url=f"{ENDPOINT_URL}/shared"),
    )
    await service_harness.register(live, endpoint_url=f"{ENDPOINT_URL}/shared")
    runtime.database.expire_sessions(expired)
    assert not await is_registered(service_harness, service)
    assert await is_registered(service_harness, shared)
    assert await service_harness.list_services(session_id=expired.id) == []
    for request in (
        service_harness.heartbeat(service.id),
        service_harness.heartbeat(None, session_id=expired.id),
        service_harness.heartbeat(shared.id, session_id=expired.id),
        service_harness.update(shared, HEALTHY, session_id=expired.id),
        service_harness.read(shared, expired.id),
        service_harness.update(service, HEALTHY),
    ):
        with pytest.raises(Problem) as refusal:
            await request
        assert refusal.value.code == "agent_service_not_found"
    # A new registration first writes the missing unregister event, before any sweep runs.
    result = await service_harness.register(live)
    assert (result.created, result.service.id, result.service.agent_id) == (True, service.id, live.id)
    assert await event_types(runtime, service) == ["register", "unregister", "register"]
    await service_harness.terminate(expired)
    assert await is_registered(service_harness, service)
    assert (await service_harness.read(shared)).agent_id == live.id
    await service_harness.terminate(live)
    assert not await is_registered(service_harness, service)


async def test_marked_registrant_stops_counting_before_its_termination(runtime: RuntimeHarness) -> None:
    service_harness = ServiceHarness(runtime, chunk=2)
    tree = await runtime.spawn_tree(4)
    service = await service_harness.register_service(tree[-1])
    result = await service_harness.terminate_lane.submit(Terminate(ZONE, tree[0].id, "closed", admin()))
    assert result.cascade_id is not None
    assert count_registrations(runtime) == 1, "the session is marked but not terminated yet"
    assert not await is_registered(service_harness, service)
    with pytest.raises(Problem, match="does not exist"):
        await service_harness.register(tree[-1])
    await service_harness.terminate(tree[0])
    assert count_registrations(runtime) == 0
    assert await event_types(runtime, service) == ["register", "unregister"]
    await service_harness.lanes.drain()


async def test_last_chunk_of_a_cascade_unregisters_a_shared_service_once(runtime: RuntimeHarness) -> None:
    service_harness = ServiceHarness(runtime, chunk=2)
    tree = await runtime.spawn_tree(5)
    for session in tree:
        service = await service_harness.register_service(session)
    await service_harness.terminate(tree[0])
    assert (await event_types(runtime, service)).count("unregister") == 1
    assert (await event_types(runtime, service))[-1] == "unregister"
    assert not await is_registered(service_harness, service)
    await service_harness.lanes.drain()


async def test_concurrent_registration_and_termination_leave_no_service(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    for number in range(10 * ROUNDS):
        session = await runtime.spawn()
        url = f"{ENDPOINT_URL}/{number}"
        results = await asyncio.gather(
            *(service_harness.register(session, endpoint_url=url) for _ in range(3)),
            service_harness.terminate(session),
            *(service_harness.register(session, endpoint_url=url) for _ in range(3)),
            return_exceptions=True,
        )
        assert {*result_names(results)} <= {"RegisteredService", "agent_not_found", "NoneType"}
    assert count_registrations(runtime) == 0
    assert await service_harness.list_services() == []


async def test_registration_and_termination_through_two_replicas_leave_no_service(postgres_url: str) -> None:
    async with open_replicas(postgres_url) as (runtime, replicas):
        for number in range(10 * ROUNDS):
            session = await runtime.spawn()
            url = f"{ENDPOINT_URL}/{number}"
            await asyncio.gather(
                *(replicas[0].register(session, endpoint_url=url) for _ in range(3)),
                replicas[1].terminate(session),
                return_exceptions=True,
            )
        assert count_registrations(runtime) == 0
        assert await replicas[0].list_services() == []
