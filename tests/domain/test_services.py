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
from tests.support.asking import APP, ZONE, caller
from tests.support.keel import Keel, codes, keel_on, open_store
from tests.support.plans import Planner, Recording
from tests.support.rounds import ROUNDS
from tests.support.serving import OTHER, URL, Serving, is_there, registering, registrations, replicas, told, told_types

PUSH = ServiceUpdate(delivery=DeliveryMode.PUSH)
HEALTHY = ServiceUpdate(health=ServiceHealth.HEALTHY)


# -- registering -------------------------------------------------------------------------------------------------


async def test_a_service_is_made_once_and_known_afterwards(keel: Keel, serving: Serving) -> None:
    session = await keel.spawn()
    said = ServiceUpdate('["1"]', "fw", "2", '["a"]', ServiceHealth.HEALTHY, '{"m":1}', DeliveryMode.PUSH)
    first = await serving.register(session, update=said, trace="00-trace")
    assert (first.created, first.include_secret, first.service.agent_id) == (True, True, session.id)
    assert await serving.show(first.service) == first.service
    again = await serving.register(session)
    assert again == RegisteredService(first.service)
    changed = await serving.register(session, update=ServiceUpdate(metadata_json="{}"))
    assert changed.service.metadata_json == "{}"
    assert changed.service.capabilities == '["a"]'
    assert await serving.show(first.service) == changed.service
    registered, change = await told(keel, first.service)
    assert (registered.type, registered.actor, registered.trace) == ("service.register", "tester", "00-trace")
    assert (registered.from_state, registered.to_state) == (None, "healthy")
    assert msgspec.json.decode(registered.data) == {
        "application_id": APP,
        "agent_id": session.id,
        "endpoint_url": URL,
        "delivery": "push",
    }
    assert (change.type, msgspec.json.decode(change.data)["changed"]) == ("service.change", ["metadata_json"])


async def test_of_many_who_register_one_endpoint_at_once_one_makes_it(keel: Keel, serving: Serving) -> None:
    for number in range(ROUNDS):
        people = [await keel.spawn() for _ in range(10)]
        url = f"{URL}/{number}"
        outcomes = await asyncio.gather(*(serving.register(one, endpoint_url=url) for one in people))
        assert sum(outcome.created for outcome in outcomes) == 1
        [ref] = {outcome.service.ref for outcome in outcomes}
        assert keel.side.count("service_sessions", "service_id = ?", ref[1]) == 10
        leader = next(outcome.service.agent_id for outcome in outcomes if outcome.created)
        assert {outcome.service.agent_id for outcome in outcomes} == {leader}


async def test_replicas_that_register_one_endpoint_at_once_make_it_once(postgres_url: str) -> None:
    async with replicas(postgres_url) as (keel, both):
        people = [await keel.spawn() for _ in range(10)]
        for number in range(5 * ROUNDS):
            url = f"{URL}/{number}"
            outcomes = await asyncio.gather(
                *(both[n % 2].register(one, endpoint_url=url) for n, one in enumerate(people))
            )
            assert sum(outcome.created for outcome in outcomes) == 1
            assert len({outcome.service.id for outcome in outcomes}) == 1


async def test_a_refused_registration_costs_its_neighbours_nothing(keel: Keel, serving: Serving) -> None:
    live, ended, suspended, expired = [await keel.spawn() for _ in range(4)]
    foreign = await keel.spawn(OTHER)
    await keel.end(ended)
    await keel.suspend(suspended)
    keel.side.expire(expired)
    await serving.end_zone(OTHER)
    asks = [
        registering(live.id),
        registering(ended.id),
        registering(suspended.id),
        registering(caller=caller(session_id=suspended.id)),
        registering(expired.id),
        registering(foreign.id),
        registering(zone_id=OTHER),
        registering(zone_id="nowhere"),
        registering(caller=caller("x")),
        registering(live.id, application_id="other"),
        registering(endpoint_url="http://10.0.0.1/", update=PUSH),
        registering(),
    ]
    outcomes = await asyncio.gather(*(serving.registers.submit(ask) for ask in asks), return_exceptions=True)
    assert codes(outcomes) == [
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
    assert keel.side.count("agent_services") == 1


async def test_where_it_is_allowed_services_inside_are_pushed_to(keel: Keel) -> None:
    allowing = Serving(keel.store, private_allowed=True)
    made = await allowing.make(endpoint_url="http://127.0.0.1:9/", update=PUSH)
    assert made.delivery is DeliveryMode.PUSH
    await allowing.lanes.drain()


async def test_the_same_endpoint_in_another_zone_or_of_another_application_is_another_service(
    keel: Keel, serving: Serving
) -> None:
    made = [await serving.make(), await serving.make(zone_id=OTHER), await serving.make(application_id="other")]
    assert len({service.id for service in made}) == 3
    with pytest.raises(Problem, match="no service"):
        await serving.shows.submit(ServiceRef(OTHER, made[0].id))
    assert [service.id for service in await serving.page(zone_id=OTHER)] == [made[1].id]


# -- coming back -------------------------------------------------------------------------------------------------


async def test_a_service_that_was_gone_comes_back_under_its_id(keel: Keel, serving: Serving) -> None:
    first, second = await keel.spawn(), await keel.spawn()
    made = await serving.make(first, update=ServiceUpdate(metadata_json='{"old":1}', delivery=DeliveryMode.PUSH))
    await serving.change(made, rotate_secret=True)
    await serving.end(first)
    again = await serving.register(second, update=PUSH)
    assert again.created and again.include_secret
    assert again.service == await serving.show(made)
    assert (again.service.id, again.service.created_at) == (made.id, made.created_at)
    assert (again.service.metadata_json, again.service.secret_number) == ("{}", 3)
    assert await told_types(keel, made) == ["register", "change", "unregister", "register"]
    assert registrations(keel) == 1


# -- unregistering -----------------------------------------------------------------------------------------------


async def test_unregistering_takes_it_from_everybody_and_is_done_once(keel: Keel, serving: Serving) -> None:
    first, second = await keel.spawn(), await keel.spawn()
    made = await serving.make(first)
    await serving.register(second)
    await asyncio.gather(*(serving.unregister(made) for _ in range(5)))
    await serving.unregister(made)
    await serving.unregister(made, first.id)
    assert not await is_there(serving, made)
    assert registrations(keel) == 0
    assert (await told_types(keel, made)).count("unregister") == 1
    gone = (await told(keel, made))[-1]
    assert msgspec.json.decode(gone.data)["reason"] == "requested"
    await serving.end(first)
    assert (await told_types(keel, made))[-1] == "unregister"


async def test_by_the_path_of_a_session_only_its_own_registration_ends(keel: Keel, serving: Serving) -> None:
    first, second, stranger = await keel.spawn(), await keel.spawn(), await keel.spawn()
    made = await serving.make(first)
    await serving.register(second)
    for _ in range(2):
        await serving.unregister(made, first.id)
        assert (await serving.show(made)).agent_id == second.id
    await serving.unregister(made, stranger.id)
    assert await is_there(serving, made)
    await serving.unregister(made, second.id)
    assert not await is_there(serving, made)
    assert await told_types(keel, made) == ["register", "change", "change", "unregister"]


async def test_only_what_is_unknown_or_another_applications_cannot_be_unregistered(
    keel: Keel, serving: Serving
) -> None:
    session, other = await keel.spawn(), await keel.spawn(application_id="other")
    made = await serving.make(session)
    unknown = msgspec.structs.replace(made, id="nothing")
    asks = [
        serving.unregister(unknown),
        serving.unregister(unknown, session.id),
        serving.unregister(made, "nobody"),
        serving.unregister(made, other.id),
        serving.unregister(msgspec.structs.replace(made, zone_id=OTHER)),
        serving.unregister(made, by=caller("x")),
    ]
    assert codes(await asyncio.gather(*asks, return_exceptions=True)) == [
        "agent_service_not_found",
        "agent_service_not_found",
        "agent_not_found",
        "agent_service_not_found",
        "agent_service_not_found",
        "application_ownership_required",
    ]
    assert await is_there(serving, made)
    assert await told_types(keel, made) == ["register"]


# -- changing ----------------------------------------------------------------------------------------------------


async def test_changes_in_one_batch_are_made_in_order_and_told_each(keel: Keel, serving: Serving) -> None:
    session = await keel.spawn()
    made = await serving.make(session)
    outcomes = await asyncio.gather(
        serving.change(made, HEALTHY),
        serving.change(made, HEALTHY),
        serving.change(made, ServiceUpdate(metadata_json='{"a":1}'), session_id=session.id),
        serving.change(made, PUSH),
        serving.change(made, rotate_secret=True),
        serving.change(made, rotate_secret=True),
    )
    assert [outcome.include_secret for outcome in outcomes] == [False, False, False, True, True, True]
    last = await serving.show(made)
    assert outcomes[-1].service == last
    assert (last.health, last.metadata_json, last.secret_number) == (ServiceHealth.HEALTHY, '{"a":1}', 3)
    changes = [msgspec.json.decode(event.data)["changed"] for event in (await told(keel, made))[1:]]
    number = "secret_number"
    assert changes == [["health"], ["metadata_json"], ["delivery", number], [number], [number]]


async def test_what_may_not_be_changed_is_refused_and_stays(keel: Keel, serving: Serving) -> None:
    session, stranger = await keel.spawn(), await keel.spawn()
    made = await serving.make(session)
    inside = await serving.make(endpoint_url="http://[::1]/")
    foreign = await serving.make(zone_id=OTHER)
    asks = [
        serving.change(msgspec.structs.replace(made, id=foreign.id), HEALTHY),
        serving.change(made, HEALTHY, caller=caller("x")),
        serving.change(made, HEALTHY, session_id=stranger.id),
        serving.change(made, HEALTHY, session_id="nobody"),
        serving.change(inside, PUSH),
    ]
    assert codes(await asyncio.gather(*asks, return_exceptions=True)) == [
        "agent_service_not_found",
        "application_ownership_required",
        "agent_service_not_found",
        "agent_not_found",
        "invalid_endpoint_url",
    ]
    assert [await serving.show(one) for one in (made, inside, foreign)] == [made, inside, foreign]


# -- heartbeats --------------------------------------------------------------------------------------------------


async def test_a_heartbeat_writes_no_event_unless_the_health_changes(keel: Keel, serving: Serving) -> None:
    made = await serving.make()
    before = await keel.log()
    for said in (
        ServiceUpdate(),
        ServiceUpdate(active_invocations=3),
        ServiceUpdate(metadata_json='{"a":1}'),
        ServiceUpdate(health=made.health),
    ):
        [beaten] = (await serving.beat(made.id, said)).services
        assert beaten == await serving.show(made)
        assert beaten.last_heartbeat_at is not None
    assert (beaten.active_invocations, beaten.metadata_json) == (3, '{"a":1}')
    assert await keel.log() == before
    await asyncio.gather(*(serving.beat(made.id, HEALTHY) for _ in range(5)))
    assert (await serving.show(made)).health is ServiceHealth.HEALTHY
    assert await told_types(keel, made) == ["register", "change"]
    change = (await told(keel, made))[-1]
    assert (change.from_state, change.to_state) == ("starting", "healthy")


async def test_a_session_tells_of_one_of_its_services_or_of_all(keel: Keel, serving: Serving) -> None:
    session, other = await keel.spawn(), await keel.spawn()
    own = [await serving.make(session, endpoint_url=f"{URL}/{n}") for n in range(3)]
    await serving.register(other, endpoint_url=f"{URL}/0")
    theirs = await serving.make(other, endpoint_url=f"{URL}/x")
    one = await serving.beat(own[0].id, HEALTHY, session_id=session.id)
    assert [service.id for service in one.services] == [own[0].id]
    every = await serving.beat(None, HEALTHY, session_id=session.id)
    assert {service.id for service in every.services} == {service.id for service in own}
    assert {service.health for service in every.services} == {ServiceHealth.HEALTHY}
    assert (await serving.show(theirs)).last_heartbeat_at is None
    assert len((await serving.beat(None, session_id=other.id)).services) == 2
    await keel.suspend(session)
    assert len((await serving.beat(None, session_id=session.id)).services) == 3, "asleep, and heard of"


async def test_a_heartbeat_for_what_is_not_there_or_not_ones_own_is_refused(keel: Keel, serving: Serving) -> None:
    session, idle = await keel.spawn(), await keel.spawn()
    made, foreign = await serving.make(session), await serving.make(zone_id=OTHER)
    gone = await serving.make(endpoint_url=f"{URL}/gone")
    await serving.unregister(gone)
    asks = [
        serving.beat("nothing"),
        serving.beat(foreign.id),
        serving.beat(gone.id),
        serving.beat(made.id, session_id=idle.id),
        serving.beat(made.id, session_id="nobody"),
        serving.beat(None, session_id=idle.id),
        serving.beat(None, session_id="nobody"),
        serving.beat(made.id, caller=caller("x")),
        serving.beat(None, session_id=session.id, caller=caller("x")),
        serving.beat(made.id),
    ]
    assert codes(await asyncio.gather(*asks, return_exceptions=True)) == [
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


async def test_services_are_listed_newest_first_by_what_is_asked(keel: Keel, serving: Serving) -> None:
    session = await keel.spawn()
    made = [await serving.make(session, endpoint_url=f"{URL}/{n}") for n in range(3)]
    other = await serving.make(application_id="other", update=HEALTHY)
    await serving.make(zone_id=OTHER)
    gone = await serving.make(endpoint_url=f"{URL}/gone")
    await serving.unregister(gone)

    def ids(services: Iterable[Service]) -> list[str]:
        return [service.id for service in services]

    every = ids([other, *made[::-1]])
    assert ids(await serving.page()) == every
    first = await serving.page(limit=2)
    assert ids([*first, *await serving.page(limit=9, before=first[-1].id)]) == every
    assert ids(await serving.page(application_id="other")) == [other.id]
    assert ids(await serving.page(application_id=APP, health=ServiceHealth.HEALTHY)) == []
    assert ids(await serving.page(health=ServiceHealth.HEALTHY)) == [other.id]
    assert ids(await serving.page(session_id=session.id)) == ids(made[::-1])
    assert ids(await serving.page(session_id=session.id, limit=1, before=made[2].id)) == [made[1].id]
    assert await serving.page(session_id=(await keel.spawn()).id) == []
    for wanted, sentence in (({"zone_id": "nowhere"}, "no zone"), ({"session_id": "nobody"}, "no session")):
        with pytest.raises(Problem, match=sentence):
            await serving.page(**wanted)


async def test_whoever_speaks_for_a_session_that_has_ended_does_and_sees_nothing(keel: Keel, serving: Serving) -> None:
    session, ended = await keel.spawn(), await keel.spawn()
    made = await serving.make(session)
    await keel.end(ended)
    before = await keel.log()
    who = caller(session_id=ended.id)
    bearer = Bearer(ZONE, ended.id)
    outcomes = await asyncio.gather(
        serving.register(session, caller=who),
        serving.change(made, HEALTHY, caller=who),
        serving.beat(made.id, caller=who),
        serving.unregister(made, by=who),
        serving.shows.submit(ServiceRef(ZONE, made.id, None, bearer)),
        serving.page(bearer=bearer),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [Unauthenticated] * 6
    assert codes(outcomes) == ["session_ended"] * 6
    assert await keel.log() == before
    assert await serving.show(made) == made


# -- as tables grow ----------------------------------------------------------------------------------------------


async def one_of_each(keel: Keel, serving: Serving) -> None:
    """Everything this room says to the database, with something left to do when it is said again."""
    first, second = await keel.spawn(), await keel.spawn()
    made = await serving.make(first)
    await serving.register(second)
    await serving.change(made, HEALTHY, session_id=first.id)
    await serving.beat(None, session_id=first.id)
    await serving.page(application_id=APP)
    await serving.page(session_id=first.id)
    await serving.unregister(made, second.id)
    await serving.end(first)
    await serving.unregister(await serving.make())
    await serving.forgets.submit(DeleteExpired(ZONE, made.id, 1))


def again(seen: dict[str, BoundStatement]) -> None:
    fresh = new_id()
    row = (fresh, ZONE, APP, None, fresh, "[]", None, None, "[]", "starting", "{}", "pull", 1, 0, None, None, 1, 1)
    seen["services_insert"] = Q.services_insert(batch=[row])
    seen["registrations_insert"] = Q.registrations_insert(batch=[(ZONE, fresh, NO_SESSION)])


async def test_no_statement_scans_or_touches_more_pages_however_many_services_there_are(postgres_url: str) -> None:
    async with keel_on(postgres_url) as keel:
        await keel.zone()
        store = Recording(await open_store(postgres_url))
        serving = Serving(store)
        await one_of_each(keel, serving)
        own = {statement.name: store.seen[statement.name] for statement in Q}
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


def grow(keel: Keel, session: Session) -> None:
    """Services by tens of thousands, of many applications and zones, most of them gone; and one that thousands of
    sessions have registered."""
    keel.side.run(
        """
        insert into agent_services
        select '0' || to_char(n, 'FM0000000'), case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'app' || n % 50,
               null, 'http://a/' || n, '[]', null, null, '[]', 'healthy', '{}', 'pull', 1, 0, null,
               case when n % 4 < 3 then 1 end, 1, 1
        from generate_series(1, 20000) n
        """,
        ZONE,
    )
    keel.side.run(
        "insert into service_sessions select zone_id, id, '' from agent_services where unregistered_at is null "
        "and id like '0%' on conflict do nothing"
    )
    keel.side.run(
        "insert into service_sessions select ?, '00000002', ? || n from generate_series(1, 20000) n", ZONE, session.id
    )
