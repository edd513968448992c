"""Services on both engines: registration, updates, heartbeats, reads and unregistration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import msgspec
import pytest

from quarterdeck.core.caller import Bearer
from quarterdeck.core.errors import Problem, Unauthenticated
from quarterdeck.core.ids import new_id
from quarterdeck.domain.services.model import (
    NO_SESSION,
    DeleteService,
    DeliveryMode,
    RegisteredService,
    Service,
    ServiceHealth,
    ServiceUpdate,
    ShowService,
)
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.sessions.model import Session
from quarterdeck.store.sql import BoundStatement
from tests.support.builders import APP, ZONE, caller
from tests.support.query_plans import Planner, RecordingStore
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime, open_store, result_names
from tests.support.services import (
    ENDPOINT_URL,
    OTHER_ZONE,
    ServiceHarness,
    count_registrations,
    event_types,
    events_of,
    is_registered,
    open_replicas,
    register_command,
)

PUSH = ServiceUpdate(delivery=DeliveryMode.PUSH)
HEALTHY = ServiceUpdate(health=ServiceHealth.HEALTHY)


# -- registration ------------------------------------------------------------------------------------------------


async def test_repeated_registration_updates_the_service_instead_of_creating_another(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn()
    update = ServiceUpdate('["1"]', "fw", "2", '["a"]', ServiceHealth.HEALTHY, '{"m":1}', DeliveryMode.PUSH)
    first = await service_harness.register(session, update=update, trace="00-trace")
    assert (first.created, first.include_secret, first.service.agent_id) == (True, True, session.id)
    assert await service_harness.read(first.service) == first.service
    repeated = await service_harness.register(session)
    assert repeated == RegisteredService(first.service)
    changed = await service_harness.register(session, update=ServiceUpdate(metadata_json="{}"))
    assert changed.service.metadata_json == "{}"
    assert changed.service.capabilities == '["a"]'
    assert await service_harness.read(first.service) == changed.service
    registered, change = await events_of(runtime, first.service)
    assert (registered.type, registered.actor, registered.trace) == ("service.register", "tester", "00-trace")
    assert (registered.from_state, registered.to_state) == (None, "healthy")
    assert msgspec.json.decode(registered.data) == {
        "application_id": APP,
        "agent_id": session.id,
        "endpoint_url": ENDPOINT_URL,
        "delivery": "push",
    }
    assert (change.type, msgspec.json.decode(change.data)["changed"]) == ("service.change", ["metadata_json"])


async def test_concurrent_registrations_of_one_endpoint_create_one_service(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    for number in range(ROUNDS):
        sessions = [await runtime.spawn() for _ in range(10)]
        url = f"{ENDPOINT_URL}/{number}"
        results = await asyncio.gather(*(service_harness.register(session, endpoint_url=url) for session in sessions))
        assert sum(result.created for result in results) == 1
        [ref] = {result.service.ref for result in results}
        assert runtime.database.count("service_sessions", "service_id = ?", ref[1]) == 10
        registrant = next(result.service.agent_id for result in results if result.created)
        assert {result.service.agent_id for result in results} == {registrant}


async def test_concurrent_registrations_through_two_replicas_create_one_service(postgres_url: str) -> None:
    async with open_replicas(postgres_url) as (runtime, replicas):
        sessions = [await runtime.spawn() for _ in range(10)]
        for number in range(5 * ROUNDS):
            url = f"{ENDPOINT_URL}/{number}"
            results = await asyncio.gather(
                *(replicas[n % 2].register(session, endpoint_url=url) for n, session in enumerate(sessions))
            )
            assert sum(result.created for result in results) == 1
            assert len({result.service.id for result in results}) == 1


async def test_refused_registration_does_not_affect_others_in_its_batch(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    live, ended, suspended, expired = [await runtime.spawn() for _ in range(4)]
    foreign = await runtime.spawn(OTHER_ZONE)
    await runtime.terminate(ended)
    await runtime.suspend(suspended)
    runtime.database.expire_sessions(expired)
    await service_harness.stop_zone(OTHER_ZONE)
    commands = [
        register_command(live.id),
        register_command(ended.id),
        register_command(suspended.id),
        register_command(caller=caller(session_id=suspended.id)),
        register_command(expired.id),
        register_command(foreign.id),
        register_command(zone_id=OTHER_ZONE),
        register_command(zone_id="unknown-zone"),
        register_command(caller=caller("x")),
        register_command(live.id, application_id="other"),
        register_command(endpoint_url="http://10.0.0.1/", update=PUSH),
        register_command(),
    ]
    results = await asyncio.gather(
        *(service_harness.register_lane.submit(command) for command in commands), return_exceptions=True
    )
    assert result_names(results) == [
        "RegisteredService",
        "agent_not_found",
        "agent_suspended",
        "agent_suspended",
        "agent_not_found",
        "agent_not_found",
        "zone_ended",
        "zone_not_found",
        "application_ownership_required",
        "application_mismatch",
        "invalid_endpoint_url",
        "RegisteredService",
    ]
    assert runtime.database.count("agent_services") == 1


async def test_private_push_endpoint_is_accepted_where_allowed(runtime: RuntimeHarness) -> None:
    service_harness = ServiceHarness(runtime, private_allowed=True)
    service = await service_harness.register_service(endpoint_url="http://127.0.0.1:9/", update=PUSH)
    assert service.delivery is DeliveryMode.PUSH
    await service_harness.lanes.drain()


async def test_same_endpoint_in_another_zone_or_application_is_another_service(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    services = [
        await service_harness.register_service(),
        await service_harness.register_service(zone_id=OTHER_ZONE),
        await service_harness.register_service(application_id="other"),
    ]
    assert len({service.id for service in services}) == 3
    with pytest.raises(Problem, match="does not exist"):
        await service_harness.show_lane.submit(ShowService(OTHER_ZONE, services[0].id))
    assert [service.id for service in await service_harness.list_services(zone_id=OTHER_ZONE)] == [services[1].id]


# -- registration after unregistration ---------------------------------------------------------------------------


async def test_service_registered_again_keeps_its_id(runtime: RuntimeHarness, service_harness: ServiceHarness) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    service = await service_harness.register_service(
        first, update=ServiceUpdate(metadata_json='{"old":1}', delivery=DeliveryMode.PUSH)
    )
    await service_harness.update(service, rotate_secret=True)
    await service_harness.terminate(first)
    result = await service_harness.register(second, update=PUSH)
    assert result.created and result.include_secret
    assert result.service == await service_harness.read(service)
    assert (result.service.id, result.service.created_at) == (service.id, service.created_at)
    assert (result.service.metadata_json, result.service.secret_number) == ("{}", 3)
    assert await event_types(runtime, service) == ["register", "change", "unregister", "register"]
    assert count_registrations(runtime) == 1


# -- unregistration ----------------------------------------------------------------------------------------------


async def test_unregistering_removes_every_registrant_and_writes_one_event(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    service = await service_harness.register_service(first)
    await service_harness.register(second)
    await asyncio.gather(*(service_harness.unregister(service) for _ in range(5)))
    await service_harness.unregister(service)
    await service_harness.unregister(service, first.id)
    assert not await is_registered(service_harness, service)
    assert count_registrations(runtime) == 0
    assert (await event_types(runtime, service)).count("unregister") == 1
    event = (await events_of(runtime, service))[-1]
    assert msgspec.json.decode(event.data)["reason"] == "requested"
    await service_harness.terminate(first)
    assert (await event_types(runtime, service))[-1] == "unregister"


async def test_unregistering_by_session_removes_only_its_own_registration(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    first, second, unrelated = await runtime.spawn(), await runtime.spawn(), await runtime.spawn()
    service = await service_harness.register_service(first)
    await service_harness.register(second)
    for _ in range(2):
        await service_harness.unregister(service, first.id)
        assert (await service_harness.read(service)).agent_id == second.id
    await service_harness.unregister(service, unrelated.id)
    assert await is_registered(service_harness, service)
    await service_harness.unregister(service, second.id)
    assert not await is_registered(service_harness, service)
    assert await event_types(runtime, service) == ["register", "change", "change", "unregister"]


async def test_unregistering_an_unknown_or_foreign_service_is_refused(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session, other = await runtime.spawn(), await runtime.spawn(application_id="other")
    service = await service_harness.register_service(session)
    unknown = msgspec.structs.replace(service, id="unknown-service")
    requests = [
        service_harness.unregister(unknown),
        service_harness.unregister(unknown, session.id),
        service_harness.unregister(service, "unknown-session"),
        service_harness.unregister(service, other.id),
        service_harness.unregister(msgspec.structs.replace(service, zone_id=OTHER_ZONE)),
        service_harness.unregister(service, as_caller=caller("x")),
    ]
    assert result_names(await asyncio.gather(*requests, return_exceptions=True)) == [
        "agent_service_not_found",
        "agent_service_not_found",
        "agent_not_found",
        "agent_service_not_found",
        "agent_service_not_found",
        "application_ownership_required",
    ]
    assert await is_registered(service_harness, service)
    assert await event_types(runtime, service) == ["register"]


# -- updates -----------------------------------------------------------------------------------------------------


async def test_updates_in_one_batch_apply_in_order_with_one_event_each(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn()
    service = await service_harness.register_service(session)
    results = await asyncio.gather(
        service_harness.update(service, HEALTHY),
        service_harness.update(service, HEALTHY),
        service_harness.update(service, ServiceUpdate(metadata_json='{"a":1}'), session_id=session.id),
        service_harness.update(service, PUSH),
        service_harness.update(service, rotate_secret=True),
        service_harness.update(service, rotate_secret=True),
    )
    assert [result.include_secret for result in results] == [False, False, False, True, True, True]
    last = await service_harness.read(service)
    assert results[-1].service == last
    assert (last.health, last.metadata_json, last.secret_number) == (ServiceHealth.HEALTHY, '{"a":1}', 3)
    changes = [msgspec.json.decode(event.data)["changed"] for event in (await events_of(runtime, service))[1:]]
    number = "secret_number"
    assert changes == [["health"], ["metadata_json"], ["delivery", number], [number], [number]]


async def test_refused_update_changes_nothing(runtime: RuntimeHarness, service_harness: ServiceHarness) -> None:
    session, unrelated = await runtime.spawn(), await runtime.spawn()
    public = await service_harness.register_service(session)
    private = await service_harness.register_service(endpoint_url="http://[::1]/")
    foreign = await service_harness.register_service(zone_id=OTHER_ZONE)
    requests = [
        service_harness.update(msgspec.structs.replace(public, id=foreign.id), HEALTHY),
        service_harness.update(public, HEALTHY, caller=caller("x")),
        service_harness.update(public, HEALTHY, session_id=unrelated.id),
        service_harness.update(public, HEALTHY, session_id="unknown-session"),
        service_harness.update(private, PUSH),
    ]
    assert result_names(await asyncio.gather(*requests, return_exceptions=True)) == [
        "agent_service_not_found",
        "application_ownership_required",
        "agent_service_not_found",
        "agent_not_found",
        "invalid_endpoint_url",
    ]
    assert [await service_harness.read(service) for service in (public, private, foreign)] == [public, private, foreign]


# -- heartbeats --------------------------------------------------------------------------------------------------


async def test_heartbeat_writes_no_event_unless_the_health_changes(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    service = await service_harness.register_service()
    before = await runtime.read_log()
    for update in (
        ServiceUpdate(),
        ServiceUpdate(active_invocations=3),
        ServiceUpdate(metadata_json='{"a":1}'),
        ServiceUpdate(health=service.health),
    ):
        [result] = (await service_harness.heartbeat(service.id, update)).services
        assert result == await service_harness.read(service)
        assert result.last_heartbeat_at is not None
    assert (result.active_invocations, result.metadata_json) == (3, '{"a":1}')
    assert await runtime.read_log() == before
    await asyncio.gather(*(service_harness.heartbeat(service.id, HEALTHY) for _ in range(5)))
    assert (await service_harness.read(service)).health is ServiceHealth.HEALTHY
    assert await event_types(runtime, service) == ["register", "change"]
    change = (await events_of(runtime, service))[-1]
    assert (change.from_state, change.to_state) == ("starting", "healthy")


async def test_session_heartbeat_covers_one_or_all_of_its_services(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session, other = await runtime.spawn(), await runtime.spawn()
    own = [await service_harness.register_service(session, endpoint_url=f"{ENDPOINT_URL}/{n}") for n in range(3)]
    await service_harness.register(other, endpoint_url=f"{ENDPOINT_URL}/0")
    foreign = await service_harness.register_service(other, endpoint_url=f"{ENDPOINT_URL}/x")
    one = await service_harness.heartbeat(own[0].id, HEALTHY, session_id=session.id)
    assert [service.id for service in one.services] == [own[0].id]
    all_services = await service_harness.heartbeat(None, HEALTHY, session_id=session.id)
    assert {service.id for service in all_services.services} == {service.id for service in own}
    assert {service.health for service in all_services.services} == {ServiceHealth.HEALTHY}
    assert (await service_harness.read(foreign)).last_heartbeat_at is None
    assert len((await service_harness.heartbeat(None, session_id=other.id)).services) == 2
    await runtime.suspend(session)
    assert len((await service_harness.heartbeat(None, session_id=session.id)).services) == 3, "suspended"


async def test_heartbeat_for_an_unknown_or_foreign_service_is_refused(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session, idle = await runtime.spawn(), await runtime.spawn()
    service, foreign = (
        await service_harness.register_service(session),
        await service_harness.register_service(zone_id=OTHER_ZONE),
    )
    unregistered = await service_harness.register_service(endpoint_url=f"{ENDPOINT_URL}/unregistered")
    await service_harness.unregister(unregistered)
    requests = [
        service_harness.heartbeat("unknown-service"),
        service_harness.heartbeat(foreign.id),
        service_harness.heartbeat(unregistered.id),
        service_harness.heartbeat(service.id, session_id=idle.id),
        service_harness.heartbeat(service.id, session_id="unknown-session"),
        service_harness.heartbeat(None, session_id=idle.id),
        service_harness.heartbeat(None, session_id="unknown-session"),
        service_harness.heartbeat(service.id, caller=caller("x")),
        service_harness.heartbeat(None, session_id=session.id, caller=caller("x")),
        service_harness.heartbeat(service.id),
    ]
    assert result_names(await asyncio.gather(*requests, return_exceptions=True)) == [
        "agent_service_not_found",
        "agent_service_not_found",
        "agent_service_not_found",
        "agent_service_not_found",
        "agent_not_found",
        "agent_service_not_found",
        "agent_not_found",
        "application_ownership_required",
        "application_ownership_required",
        "HeartbeatResult",
    ]


# -- reads -------------------------------------------------------------------------------------------------------


async def test_services_are_listed_newest_first_with_filters(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn()
    own = [await service_harness.register_service(session, endpoint_url=f"{ENDPOINT_URL}/{n}") for n in range(3)]
    other = await service_harness.register_service(application_id="other", update=HEALTHY)
    await service_harness.register_service(zone_id=OTHER_ZONE)
    unregistered = await service_harness.register_service(endpoint_url=f"{ENDPOINT_URL}/unregistered")
    await service_harness.unregister(unregistered)

    def ids(services: Iterable[Service]) -> list[str]:
        return [service.id for service in services]

    expected = ids([other, *own[::-1]])
    assert ids(await service_harness.list_services()) == expected
    first = await service_harness.list_services(limit=2)
    assert ids([*first, *await service_harness.list_services(limit=9, before=first[-1].id)]) == expected
    assert ids(await service_harness.list_services(application_id="other")) == [other.id]
    assert ids(await service_harness.list_services(application_id=APP, health=ServiceHealth.HEALTHY)) == []
    assert ids(await service_harness.list_services(health=ServiceHealth.HEALTHY)) == [other.id]
    assert ids(await service_harness.list_services(session_id=session.id)) == ids(own[::-1])
    assert ids(await service_harness.list_services(session_id=session.id, limit=1, before=own[2].id)) == [own[1].id]
    assert await service_harness.list_services(session_id=(await runtime.spawn()).id) == []
    for filters, message in (({"zone_id": "unknown"}, "does not exist"), ({"session_id": "unknown"}, "does not exist")):
        with pytest.raises(Problem, match=message):
            await service_harness.list_services(**filters)


async def test_token_of_an_ended_session_can_neither_read_nor_change_services(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session, ended = await runtime.spawn(), await runtime.spawn()
    service = await service_harness.register_service(session)
    await runtime.terminate(ended)
    before = await runtime.read_log()
    ended_caller = caller(session_id=ended.id)
    bearer = Bearer(ZONE, ended.id)
    results = await asyncio.gather(
        service_harness.register(session, caller=ended_caller),
        service_harness.update(service, HEALTHY, caller=ended_caller),
        service_harness.heartbeat(service.id, caller=ended_caller),
        service_harness.unregister(service, as_caller=ended_caller),
        service_harness.show_lane.submit(ShowService(ZONE, service.id, None, bearer)),
        service_harness.list_services(bearer=bearer),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [Unauthenticated] * 6
    assert result_names(results) == ["session_ended"] * 6
    assert await runtime.read_log() == before
    assert await service_harness.read(service) == service


# -- query plans on large tables ---------------------------------------------------------------------------------


async def run_every_statement(runtime: RuntimeHarness, service_harness: ServiceHarness) -> None:
    """Run every statement of this component, and leave work for a repetition."""
    first, second = await runtime.spawn(), await runtime.spawn()
    service = await service_harness.register_service(first)
    await service_harness.register(second)
    await service_harness.update(service, HEALTHY, session_id=first.id)
    await service_harness.heartbeat(None, session_id=first.id)
    await service_harness.list_services(application_id=APP)
    await service_harness.list_services(session_id=first.id)
    await service_harness.unregister(service, second.id)
    await service_harness.terminate(first)
    await service_harness.unregister(await service_harness.register_service())
    await service_harness.delete_lane.submit(DeleteService(ZONE, service.id, 1))


def add_repeatable_inserts(statements: dict[str, BoundStatement]) -> None:
    fresh = new_id()
    row = (fresh, ZONE, APP, None, fresh, "[]", None, None, "[]", "starting", "{}", "pull", 1, 0, None, None, 1, 1)
    statements["services_insert"] = Q.services_insert(batch=[row])
    statements["registrations_insert"] = Q.registrations_insert(batch=[(ZONE, fresh, NO_SESSION)])


async def test_statements_do_not_scan_or_read_more_pages_as_the_tables_grow(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as runtime:
        await runtime.put_zone()
        store = RecordingStore(await open_store(postgres_url))
        service_harness = ServiceHarness(RuntimeHarness(postgres_url, (store, store), RuntimeOptions()))
        await run_every_statement(runtime, service_harness)
        statements = {statement.name: store.statements[statement.name] for statement in Q}
        add_repeatable_inserts(statements)
        with contextlib.closing(Planner(postgres_url, "force_generic_plan")) as planner:
            small = {name: planner.run(bound) for name, bound in statements.items() if "page" not in name}
            insert_many_services(runtime, await runtime.spawn())
            large = {name: planner.run(statements[name]) for name in small}
        with contextlib.closing(Planner(postgres_url, "force_custom_plan")) as planner:
            pages = {name: planner.run(bound) for name, bound in statements.items() if "page" in name}
        await service_harness.lanes.drain()
        await store.close()
    assert not {n: plan.nodes for n, plan in [*large.items(), *pages.items()] if plan.scans("Seq Scan")}
    assert not {
        name: (small[name].pages, plan.pages) for name, plan in large.items() if plan.pages > 3 * small[name].pages + 12
    }


def insert_many_services(runtime: RuntimeHarness, session: Session) -> None:
    """Insert 20,000 services of many applications and zones, 3 of 4 unregistered, and one with 20,000 registrants."""
    runtime.database.execute(
        """
        insert into agent_services
        select '0' || to_char(n, 'FM0000000'), case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'app' || n % 50,
               null, 'http://a/' || n, '[]', null, null, '[]', 'healthy', '{}', 'pull', 1, 0, null,
               case when n % 4 < 3 then 1 end, 1, 1
        from generate_series(1, 20000) n
        """,
        ZONE,
    )
    runtime.database.execute(
        "insert into service_sessions select zone_id, id, '' from agent_services where unregistered_at is null "
        "and id like '0%' on conflict do nothing"
    )
    runtime.database.execute(
        "insert into service_sessions select ?, '00000002', ? || n from generate_series(1, 20000) n", ZONE, session.id
    )
