"""Services, on both engines: registered once, changed by their own, heard of, and unregistered."""

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
    DeleteExpired,
    DeliveryMode,
    RegisteredService,
    Service,
    ServiceHealth,
    ServiceRef,
    ServiceUpdate,
)
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.sessions.model import Session
from quarterdeck.store.sql import BoundStatement
from tests.support.builders import APP, ZONE, caller
from tests.support.query_plans import Planner, RecordingStore
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, open_runtime, open_store, result_names
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


# -- registering -------------------------------------------------------------------------------------------------


async def test_a_service_is_made_once_and_known_afterwards(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn()
    said = ServiceUpdate('["1"]', "fw", "2", '["a"]', ServiceHealth.HEALTHY, '{"m":1}', DeliveryMode.PUSH)
    first = await service_harness.register(session, update=said, trace="00-trace")
    assert (first.created, first.include_secret, first.service.agent_id) == (True, True, session.id)
    assert await service_harness.read(first.service) == first.service
    again = await service_harness.register(session)
    assert again == RegisteredService(first.service)
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


async def test_of_many_who_register_one_endpoint_at_once_one_makes_it(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    for number in range(ROUNDS):
        people = [await runtime.spawn() for _ in range(10)]
        url = f"{ENDPOINT_URL}/{number}"
        outcomes = await asyncio.gather(*(service_harness.register(one, endpoint_url=url) for one in people))
        assert sum(outcome.created for outcome in outcomes) == 1
        [ref] = {outcome.service.ref for outcome in outcomes}
        assert runtime.database.count("service_sessions", "service_id = ?", ref[1]) == 10
        leader = next(outcome.service.agent_id for outcome in outcomes if outcome.created)
        assert {outcome.service.agent_id for outcome in outcomes} == {leader}


async def test_replicas_that_register_one_endpoint_at_once_make_it_once(postgres_url: str) -> None:
    async with open_replicas(postgres_url) as (keel, both):
        people = [await keel.spawn() for _ in range(10)]
        for number in range(5 * ROUNDS):
            url = f"{ENDPOINT_URL}/{number}"
            outcomes = await asyncio.gather(
                *(both[n % 2].register(one, endpoint_url=url) for n, one in enumerate(people))
            )
            assert sum(outcome.created for outcome in outcomes) == 1
            assert len({outcome.service.id for outcome in outcomes}) == 1


async def test_a_refused_registration_costs_its_neighbours_nothing(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    live, ended, suspended, expired = [await runtime.spawn() for _ in range(4)]
    foreign = await runtime.spawn(OTHER_ZONE)
    await runtime.terminate(ended)
    await runtime.suspend(suspended)
    runtime.database.expire_sessions(expired)
    await service_harness.stop_zone(OTHER_ZONE)
    asks = [
        register_command(live.id),
        register_command(ended.id),
        register_command(suspended.id),
        register_command(caller=caller(session_id=suspended.id)),
        register_command(expired.id),
        register_command(foreign.id),
        register_command(zone_id=OTHER_ZONE),
        register_command(zone_id="nowhere"),
        register_command(caller=caller("x")),
        register_command(live.id, application_id="other"),
        register_command(endpoint_url="http://10.0.0.1/", update=PUSH),
        register_command(),
    ]
    outcomes = await asyncio.gather(
        *(service_harness.register_lane.submit(ask) for ask in asks), return_exceptions=True
    )
    assert result_names(outcomes) == [
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


async def test_where_it_is_allowed_services_inside_are_pushed_to(runtime: RuntimeHarness) -> None:
    allowing = ServiceHarness(runtime.store, private_allowed=True)
    made = await allowing.register_service(endpoint_url="http://127.0.0.1:9/", update=PUSH)
    assert made.delivery is DeliveryMode.PUSH
    await allowing.lanes.drain()


async def test_the_same_endpoint_in_another_zone_or_of_another_application_is_another_service(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    made = [
        await service_harness.register_service(),
        await service_harness.register_service(zone_id=OTHER_ZONE),
        await service_harness.register_service(application_id="other"),
    ]
    assert len({service.id for service in made}) == 3
    with pytest.raises(Problem, match="no service"):
        await service_harness.show_lane.submit(ServiceRef(OTHER_ZONE, made[0].id))
    assert [service.id for service in await service_harness.list_services(zone_id=OTHER_ZONE)] == [made[1].id]


# -- coming back -------------------------------------------------------------------------------------------------


async def test_a_service_that_was_gone_comes_back_under_its_id(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    made = await service_harness.register_service(
        first, update=ServiceUpdate(metadata_json='{"old":1}', delivery=DeliveryMode.PUSH)
    )
    await service_harness.update(made, rotate_secret=True)
    await service_harness.terminate(first)
    again = await service_harness.register(second, update=PUSH)
    assert again.created and again.include_secret
    assert again.service == await service_harness.read(made)
    assert (again.service.id, again.service.created_at) == (made.id, made.created_at)
    assert (again.service.metadata_json, again.service.secret_number) == ("{}", 3)
    assert await event_types(runtime, made) == ["register", "change", "unregister", "register"]
    assert count_registrations(runtime) == 1


# -- unregistering -----------------------------------------------------------------------------------------------


async def test_unregistering_takes_it_from_everybody_and_is_done_once(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    made = await service_harness.register_service(first)
    await service_harness.register(second)
    await asyncio.gather(*(service_harness.unregister(made) for _ in range(5)))
    await service_harness.unregister(made)
    await service_harness.unregister(made, first.id)
    assert not await is_registered(service_harness, made)
    assert count_registrations(runtime) == 0
    assert (await event_types(runtime, made)).count("unregister") == 1
    gone = (await events_of(runtime, made))[-1]
    assert msgspec.json.decode(gone.data)["reason"] == "requested"
    await service_harness.terminate(first)
    assert (await event_types(runtime, made))[-1] == "unregister"


async def test_by_the_path_of_a_session_only_its_own_registration_ends(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    first, second, stranger = await runtime.spawn(), await runtime.spawn(), await runtime.spawn()
    made = await service_harness.register_service(first)
    await service_harness.register(second)
    for _ in range(2):
        await service_harness.unregister(made, first.id)
        assert (await service_harness.read(made)).agent_id == second.id
    await service_harness.unregister(made, stranger.id)
    assert await is_registered(service_harness, made)
    await service_harness.unregister(made, second.id)
    assert not await is_registered(service_harness, made)
    assert await event_types(runtime, made) == ["register", "change", "change", "unregister"]


async def test_only_what_is_unknown_or_another_applications_cannot_be_unregistered(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session, other = await runtime.spawn(), await runtime.spawn(application_id="other")
    made = await service_harness.register_service(session)
    unknown = msgspec.structs.replace(made, id="nothing")
    asks = [
        service_harness.unregister(unknown),
        service_harness.unregister(unknown, session.id),
        service_harness.unregister(made, "nobody"),
        service_harness.unregister(made, other.id),
        service_harness.unregister(msgspec.structs.replace(made, zone_id=OTHER_ZONE)),
        service_harness.unregister(made, as_caller=caller("x")),
    ]
    assert result_names(await asyncio.gather(*asks, return_exceptions=True)) == [
        "agent_service_not_found",
        "agent_service_not_found",
        "agent_not_found",
        "agent_service_not_found",
        "agent_service_not_found",
        "application_ownership_required",
    ]
    assert await is_registered(service_harness, made)
    assert await event_types(runtime, made) == ["register"]


# -- changing ----------------------------------------------------------------------------------------------------


async def test_changes_in_one_batch_are_made_in_order_and_told_each(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn()
    made = await service_harness.register_service(session)
    outcomes = await asyncio.gather(
        service_harness.update(made, HEALTHY),
        service_harness.update(made, HEALTHY),
        service_harness.update(made, ServiceUpdate(metadata_json='{"a":1}'), session_id=session.id),
        service_harness.update(made, PUSH),
        service_harness.update(made, rotate_secret=True),
        service_harness.update(made, rotate_secret=True),
    )
    assert [outcome.include_secret for outcome in outcomes] == [False, False, False, True, True, True]
    last = await service_harness.read(made)
    assert outcomes[-1].service == last
    assert (last.health, last.metadata_json, last.secret_number) == (ServiceHealth.HEALTHY, '{"a":1}', 3)
    changes = [msgspec.json.decode(event.data)["changed"] for event in (await events_of(runtime, made))[1:]]
    number = "secret_number"
    assert changes == [["health"], ["metadata_json"], ["delivery", number], [number], [number]]


async def test_what_may_not_be_changed_is_refused_and_stays(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session, stranger = await runtime.spawn(), await runtime.spawn()
    made = await service_harness.register_service(session)
    inside = await service_harness.register_service(endpoint_url="http://[::1]/")
    foreign = await service_harness.register_service(zone_id=OTHER_ZONE)
    asks = [
        service_harness.update(msgspec.structs.replace(made, id=foreign.id), HEALTHY),
        service_harness.update(made, HEALTHY, caller=caller("x")),
        service_harness.update(made, HEALTHY, session_id=stranger.id),
        service_harness.update(made, HEALTHY, session_id="nobody"),
        service_harness.update(inside, PUSH),
    ]
    assert result_names(await asyncio.gather(*asks, return_exceptions=True)) == [
        "agent_service_not_found",
        "application_ownership_required",
        "agent_service_not_found",
        "agent_not_found",
        "invalid_endpoint_url",
    ]
    assert [await service_harness.read(one) for one in (made, inside, foreign)] == [made, inside, foreign]


# -- heartbeats --------------------------------------------------------------------------------------------------


async def test_a_heartbeat_writes_no_event_unless_the_health_changes(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    made = await service_harness.register_service()
    before = await runtime.read_log()
    for said in (
        ServiceUpdate(),
        ServiceUpdate(active_invocations=3),
        ServiceUpdate(metadata_json='{"a":1}'),
        ServiceUpdate(health=made.health),
    ):
        [beaten] = (await service_harness.heartbeat(made.id, said)).services
        assert beaten == await service_harness.read(made)
        assert beaten.last_heartbeat_at is not None
    assert (beaten.active_invocations, beaten.metadata_json) == (3, '{"a":1}')
    assert await runtime.read_log() == before
    await asyncio.gather(*(service_harness.heartbeat(made.id, HEALTHY) for _ in range(5)))
    assert (await service_harness.read(made)).health is ServiceHealth.HEALTHY
    assert await event_types(runtime, made) == ["register", "change"]
    change = (await events_of(runtime, made))[-1]
    assert (change.from_state, change.to_state) == ("starting", "healthy")


async def test_a_session_tells_of_one_of_its_services_or_of_all(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session, other = await runtime.spawn(), await runtime.spawn()
    own = [await service_harness.register_service(session, endpoint_url=f"{ENDPOINT_URL}/{n}") for n in range(3)]
    await service_harness.register(other, endpoint_url=f"{ENDPOINT_URL}/0")
    theirs = await service_harness.register_service(other, endpoint_url=f"{ENDPOINT_URL}/x")
    one = await service_harness.heartbeat(own[0].id, HEALTHY, session_id=session.id)
    assert [service.id for service in one.services] == [own[0].id]
    every = await service_harness.heartbeat(None, HEALTHY, session_id=session.id)
    assert {service.id for service in every.services} == {service.id for service in own}
    assert {service.health for service in every.services} == {ServiceHealth.HEALTHY}
    assert (await service_harness.read(theirs)).last_heartbeat_at is None
    assert len((await service_harness.heartbeat(None, session_id=other.id)).services) == 2
    await runtime.suspend(session)
    assert len((await service_harness.heartbeat(None, session_id=session.id)).services) == 3, "asleep, and heard of"


async def test_a_heartbeat_for_what_is_not_there_or_not_ones_own_is_refused(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session, idle = await runtime.spawn(), await runtime.spawn()
    made, foreign = (
        await service_harness.register_service(session),
        await service_harness.register_service(zone_id=OTHER_ZONE),
    )
    gone = await service_harness.register_service(endpoint_url=f"{ENDPOINT_URL}/gone")
    await service_harness.unregister(gone)
    asks = [
        service_harness.heartbeat("nothing"),
        service_harness.heartbeat(foreign.id),
        service_harness.heartbeat(gone.id),
        service_harness.heartbeat(made.id, session_id=idle.id),
        service_harness.heartbeat(made.id, session_id="nobody"),
        service_harness.heartbeat(None, session_id=idle.id),
        service_harness.heartbeat(None, session_id="nobody"),
        service_harness.heartbeat(made.id, caller=caller("x")),
        service_harness.heartbeat(None, session_id=session.id, caller=caller("x")),
        service_harness.heartbeat(made.id),
    ]
    assert result_names(await asyncio.gather(*asks, return_exceptions=True)) == [
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


# -- looking -----------------------------------------------------------------------------------------------------


async def test_services_are_listed_newest_first_by_what_is_asked(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session = await runtime.spawn()
    made = [await service_harness.register_service(session, endpoint_url=f"{ENDPOINT_URL}/{n}") for n in range(3)]
    other = await service_harness.register_service(application_id="other", update=HEALTHY)
    await service_harness.register_service(zone_id=OTHER_ZONE)
    gone = await service_harness.register_service(endpoint_url=f"{ENDPOINT_URL}/gone")
    await service_harness.unregister(gone)

    def ids(services: Iterable[Service]) -> list[str]:
        return [service.id for service in services]

    every = ids([other, *made[::-1]])
    assert ids(await service_harness.list_services()) == every
    first = await service_harness.list_services(limit=2)
    assert ids([*first, *await service_harness.list_services(limit=9, before=first[-1].id)]) == every
    assert ids(await service_harness.list_services(application_id="other")) == [other.id]
    assert ids(await service_harness.list_services(application_id=APP, health=ServiceHealth.HEALTHY)) == []
    assert ids(await service_harness.list_services(health=ServiceHealth.HEALTHY)) == [other.id]
    assert ids(await service_harness.list_services(session_id=session.id)) == ids(made[::-1])
    assert ids(await service_harness.list_services(session_id=session.id, limit=1, before=made[2].id)) == [made[1].id]
    assert await service_harness.list_services(session_id=(await runtime.spawn()).id) == []
    for wanted, sentence in (({"zone_id": "nowhere"}, "no zone"), ({"session_id": "nobody"}, "no session")):
        with pytest.raises(Problem, match=sentence):
            await service_harness.list_services(**wanted)


async def test_whoever_speaks_for_a_session_that_has_ended_does_and_sees_nothing(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    session, ended = await runtime.spawn(), await runtime.spawn()
    made = await service_harness.register_service(session)
    await runtime.terminate(ended)
    before = await runtime.read_log()
    who = caller(session_id=ended.id)
    bearer = Bearer(ZONE, ended.id)
    outcomes = await asyncio.gather(
        service_harness.register(session, caller=who),
        service_harness.update(made, HEALTHY, caller=who),
        service_harness.heartbeat(made.id, caller=who),
        service_harness.unregister(made, as_caller=who),
        service_harness.show_lane.submit(ServiceRef(ZONE, made.id, None, bearer)),
        service_harness.list_services(bearer=bearer),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [Unauthenticated] * 6
    assert result_names(outcomes) == ["session_ended"] * 6
    assert await runtime.read_log() == before
    assert await service_harness.read(made) == made


# -- as tables grow ----------------------------------------------------------------------------------------------


async def one_of_each(keel: RuntimeHarness, serving: ServiceHarness) -> None:
    """Everything this room says to the database, with something left to do when it is said again."""
    first, second = await keel.spawn(), await keel.spawn()
    made = await serving.register_service(first)
    await serving.register(second)
    await serving.update(made, HEALTHY, session_id=first.id)
    await serving.heartbeat(None, session_id=first.id)
    await serving.list_services(application_id=APP)
    await serving.list_services(session_id=first.id)
    await serving.unregister(made, second.id)
    await serving.terminate(first)
    await serving.unregister(await serving.register_service())
    await serving.delete_lane.submit(DeleteExpired(ZONE, made.id, 1))


def again(seen: dict[str, BoundStatement]) -> None:
    fresh = new_id()
    row = (fresh, ZONE, APP, None, fresh, "[]", None, None, "[]", "starting", "{}", "pull", 1, 0, None, None, 1, 1)
    seen["services_insert"] = Q.services_insert(batch=[row])
    seen["registrations_insert"] = Q.registrations_insert(batch=[(ZONE, fresh, NO_SESSION)])


async def test_no_statement_scans_or_touches_more_pages_however_many_services_there_are(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as keel:
        await keel.put_zone()
        store = RecordingStore(await open_store(postgres_url))
        serving = ServiceHarness(store)
        await one_of_each(keel, serving)
        own = {statement.name: store.statements[statement.name] for statement in Q}
        again(own)
        with contextlib.closing(Planner(postgres_url, "force_generic_plan")) as planner:
            small = {name: planner.run(bound) for name, bound in own.items() if "page" not in name}
            grow(keel, await keel.spawn())
            large = {name: planner.run(own[name]) for name in small}
        with contextlib.closing(Planner(postgres_url, "force_custom_plan")) as planner:
            pages = {name: planner.run(bound) for name, bound in own.items() if "page" in name}
        await serving.lanes.drain()
        await store.close()
    assert not {n: plan.nodes for n, plan in [*large.items(), *pages.items()] if plan.scans("Seq Scan")}
    assert not {
        name: (small[name].pages, plan.pages) for name, plan in large.items() if plan.pages > 3 * small[name].pages + 12
    }


def grow(keel: RuntimeHarness, session: Session) -> None:
    """Services by tens of thousands, of many applications and zones, most of them gone; and one that thousands of
    sessions have registered."""
    keel.database.execute(
        """
        insert into agent_services
        select '0' || to_char(n, 'FM0000000'), case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'app' || n % 50,
               null, 'http://a/' || n, '[]', null, null, '[]', 'healthy', '{}', 'pull', 1, 0, null,
               case when n % 4 < 3 then 1 end, 1, 1
        from generate_series(1, 20000) n
        """,
        ZONE,
    )
    keel.database.execute(
        "insert into service_sessions select zone_id, id, '' from agent_services where unregistered_at is null "
        "and id like '0%' on conflict do nothing"
    )
    keel.database.execute(
        "insert into service_sessions select ?, '00000002', ? || n from generate_series(1, 20000) n", ZONE, session.id
    )
