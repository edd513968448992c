"""API keys, on both engines: made within their bound, found while they are good, and gone from the commit on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import pytest

from quarterdeck.core import api_key
from quarterdeck.core.api_key import ParsedApiKey
from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.errors import LimitReached, Problem, Unauthenticated
from quarterdeck.core.ids import new_id
from quarterdeck.domain.api_keys import operations as keys
from quarterdeck.domain.api_keys.model import KEYS_MAX, ApiKey, CreateKey, KeyFilter, RevokeKey
from quarterdeck.domain.api_keys.queries import Q
from quarterdeck.domain.sessions.model import StopZone
from quarterdeck.domain.sessions.operations import Terminator
from quarterdeck.engine.lanes import Lanes, zones_of
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.transaction import Engine
from quarterdeck.store.interface import Store
from tests.support.builders import APP, ZONE, admin
from tests.support.query_plans import Planner, RecordingStore
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, open_runtime, open_store, result_names

SECRET = b"s" * 32
OTHER = "other.zone"


@dataclass(frozen=True)
class Made:
    key: ApiKey
    text: str

    @property
    def shown(self) -> ParsedApiKey:
        shown = api_key.parse(self.text.encode())
        assert shown is not None
        return shown


class Ring:
    """The lanes of keys, as `app.py` puts them together."""

    def __init__(self, store: Store) -> None:
        self.engine = Engine(store, (keys.on_zone_ended,))
        self.lanes = Lanes(self.engine, EngineSettings())
        self.creates = self.lanes.add_write_lane("key-create", keys.create_keys)
        self.revokes = self.lanes.add_write_lane("key-revoke", keys.revoke_keys)
        self.finds = self.lanes.add_read_lane("key-find", keys.authenticate_keys)
        self.stops = self.lanes.add_write_lane("zone-stop", Terminator(1_000).stop_zones)

    def asked(self, zone_id: str = ZONE, **asked: object) -> tuple[CreateKey, str]:
        key_id = new_id()
        text = api_key.format_key(zone_id, key_id, SECRET)
        plain: dict[str, object] = {
            "id": key_id,
            "zone_id": zone_id,
            "digest": api_key.digest(text.encode()),
            "name": "name",
            "application_id": APP,
            "scopes": "agent:lifecycle",
            "actor": "tester",
        }
        return msgspec.convert(plain | asked, CreateKey, from_attributes=True), text

    async def make(self, zone_id: str = ZONE, **asked: object) -> Made:
        ask, text = self.asked(zone_id, **asked)
        return Made(await self.creates.submit(ask), text)

    async def fill(self, number: int) -> None:
        await asyncio.gather(*(self.make() for _ in range(number)))

    async def revoke(self, key: ApiKey, bearer: Bearer | None = None) -> ApiKey:
        return await self.revokes.submit(RevokeKey(key.zone_id, key.id, "tester", bearer, "00-trace"))

    async def refused(self, shown: ParsedApiKey) -> bool:
        try:
            await self.finds.submit(shown)
        except Unauthenticated as refusal:
            assert (refusal.code, refusal.detail) == ("invalid_token", api_key.invalid_key_error().detail)
            return True
        return False

    async def page(self, wanted: KeyFilter) -> list[ApiKey]:
        return await self.engine.read(lambda tx: keys.list_keys(tx, wanted), zones=zones_of([wanted]))


@pytest.fixture
async def key_harness(runtime: RuntimeHarness) -> AsyncIterator[Ring]:
    await runtime.put_zone(OTHER)
    made = Ring(runtime.store)
    yield made
    await made.lanes.drain()


@contextlib.asynccontextmanager
async def replicas(url: str) -> AsyncIterator[tuple[RuntimeHarness, list[Ring]]]:
    async with open_runtime(url) as first, open_runtime(url) as second:
        await first.put_zone()
        rings = [Ring(first.store), Ring(second.store)]
        yield first, rings
        for ring in rings:
            await ring.lanes.drain()


# -- finding -----------------------------------------------------------------------------------------------------


async def test_whoever_shows_a_key_is_its_application_in_its_zone(key_harness: Ring) -> None:
    for zone_id in (ZONE, OTHER):
        made = await key_harness.make(zone_id, scopes="a b")
        name = f"key:{made.key.id}"
        assert await key_harness.finds.submit(made.shown) == Caller(
            name, APP, zone_id, frozenset({"a", "b"}), sid=name, is_local=True
        )


async def test_only_the_digest_is_stored_and_neither_it_nor_the_secret_is_in_the_log(
    runtime: RuntimeHarness, key_harness: Ring
) -> None:
    made = await key_harness.make()
    await key_harness.revoke(made.key)
    [stored] = runtime.database.execute("select * from api_keys")
    assert SECRET.hex() not in str(stored)
    assert made.shown.digest in stored
    told = str(await runtime.read_log())
    assert made.key.id in told
    assert SECRET.hex() not in told
    assert made.shown.digest not in told


async def test_a_shown_key_opens_only_what_it_was_made_for(runtime: RuntimeHarness, key_harness: Ring) -> None:
    made, other = await key_harness.make(), await key_harness.make(OTHER)
    wrong = api_key.digest(api_key.format_key(ZONE, made.key.id, b"t" * 32).encode())
    strangers = [
        msgspec.structs.replace(made.shown, digest=wrong),
        msgspec.structs.replace(made.shown, digest=other.shown.digest),
        msgspec.structs.replace(made.shown, zone_id=OTHER),
        msgspec.structs.replace(made.shown, zone_id="nowhere"),
        msgspec.structs.replace(made.shown, id=other.key.id),
        msgspec.structs.replace(made.shown, id=new_id()),
    ]
    assert all(await asyncio.gather(*(key_harness.refused(shown) for shown in strangers)))
    assert isinstance(await key_harness.finds.submit(made.shown), Caller)
    # A row that was copied to another zone by whoever can write to the database opens nothing there.
    runtime.database.execute("update api_keys set zone_id = ? where id = ?", OTHER, made.key.id)
    moved = Made(made.key, api_key.format_key(OTHER, made.key.id, SECRET))
    assert await key_harness.refused(moved.shown)


async def test_an_expired_key_is_refused_and_frees_its_place_before_any_sweep(
    runtime: RuntimeHarness, key_harness: Ring
) -> None:
    made = await key_harness.make(ttl_seconds=3_600)
    assert made.key.expires_at == made.key.created_at + 3_600_000
    await key_harness.fill(KEYS_MAX - 1)
    with pytest.raises(LimitReached):
        await key_harness.make()
    runtime.database.execute("update api_keys set expires_at = created_at where id = ?", made.key.id)
    assert await key_harness.refused(made.shown)
    await key_harness.make()
    with pytest.raises(LimitReached):
        await key_harness.make()


async def test_many_who_ask_at_once_are_each_told_their_own(key_harness: Ring) -> None:
    made = [await key_harness.make(application_id=f"app-{n}") for n in range(20)]
    shown = [one.shown for one in made for _ in range(5)]
    callers = await asyncio.gather(*(key_harness.finds.submit(each) for each in shown))
    assert [caller.client_id for caller in callers] == [f"app-{n}" for n in range(20) for _ in range(5)]


# -- making ------------------------------------------------------------------------------------------------------


async def test_a_zone_holds_as_many_live_keys_as_its_bound_and_not_one_more(key_harness: Ring) -> None:
    await key_harness.fill(KEYS_MAX - 5)
    for _ in range(ROUNDS):
        asks = [key_harness.asked()[0] for _ in range(40)]
        outcomes = await asyncio.gather(*(key_harness.creates.submit(ask) for ask in asks), return_exceptions=True)
        assert result_names(outcomes).count("ApiKey") == 5
        assert result_names(outcomes).count("key_limit_exceeded") == 35
        for outcome in outcomes:
            if isinstance(outcome, ApiKey):
                await key_harness.revoke(outcome)
    await key_harness.make(OTHER)


async def test_replicas_together_do_not_pass_the_bound_either(postgres_url: str) -> None:
    async with replicas(postgres_url) as (keel, rings):
        await rings[0].fill(KEYS_MAX - 5)
        for _ in range(ROUNDS):
            asks = [rings[n % 2].creates.submit(rings[n % 2].asked()[0]) for n in range(60)]
            outcomes = await asyncio.gather(*asks, return_exceptions=True)
            assert result_names(outcomes).count("ApiKey") == 5
            live = keel.database.count("api_keys", "revoked_at is null")
            assert live == KEYS_MAX
            for outcome in outcomes:
                if isinstance(outcome, ApiKey):
                    await rings[1].revoke(outcome)


async def test_a_refusal_for_a_full_zone_explains_itself(key_harness: Ring) -> None:
    await key_harness.fill(KEYS_MAX)
    with pytest.raises(LimitReached) as refusal:
        await key_harness.make()
    assert refusal.value.members == {
        "bound": "max_keys",
        "limit": KEYS_MAX,
        "used": KEYS_MAX,
        "frees": "a key of the zone is revoked or expires",
    }


async def test_no_key_is_made_in_a_zone_that_is_not_there_or_has_ended(
    runtime: RuntimeHarness, key_harness: Ring
) -> None:
    await key_harness.stops.submit(StopZone(OTHER, "over", admin(OTHER), ends_zone=True))
    asks = [key_harness.asked(zone_id)[0] for zone_id in ("nowhere", OTHER, ZONE)]
    outcomes = await asyncio.gather(*(key_harness.creates.submit(ask) for ask in asks), return_exceptions=True)
    assert result_names(outcomes) == ["zone_not_found", "zone_ended", "ApiKey"]


async def test_a_key_is_bound_only_to_a_live_session_of_its_own_zone(
    runtime: RuntimeHarness, key_harness: Ring
) -> None:
    live, ended, expired = [await runtime.spawn() for _ in range(3)]
    foreign = await runtime.spawn(OTHER)
    await runtime.terminate(ended)
    runtime.database.expire_sessions(expired)
    names = [session.id for session in (live, ended, expired, foreign)] + ["nowhere"]
    outcomes = await asyncio.gather(
        *(key_harness.creates.submit(key_harness.asked(session_id=name)[0]) for name in names), return_exceptions=True
    )
    assert result_names(outcomes) == ["ApiKey", *["agent_not_found"] * 4]
    said = {str(o).replace(n, "?") for o, n in zip(outcomes, names, strict=True) if isinstance(o, Problem)}
    assert len(said) == 1, "which of these it was is not told"


async def test_a_key_bound_to_a_session_says_so_to_the_operation_that_must_check_it(
    runtime: RuntimeHarness, key_harness: Ring
) -> None:
    session = await runtime.spawn()
    made = await key_harness.make(session_id=session.id)
    caller = await key_harness.finds.submit(made.shown)
    assert caller.bearer == Bearer(ZONE, session.id, None)


async def test_the_log_tells_of_every_key_made_and_revoked_once(runtime: RuntimeHarness, key_harness: Ring) -> None:
    made = await key_harness.make(ttl_seconds=60, trace="00-trace")
    await key_harness.revoke(made.key)
    await key_harness.revoke(made.key)
    created, revoked = [event for event in await runtime.read_log() if event.subject == made.key.id]
    assert (created.type, created.actor, created.to_state) == ("key.create", "tester", "live")
    assert (revoked.type, revoked.from_state, revoked.to_state) == ("key.revoke", "live", "revoked")
    assert (created.trace, revoked.trace) == ("00-trace", "00-trace")
    assert msgspec.json.decode(created.data)["scopes"] == ["agent:lifecycle"]


# -- revoking ----------------------------------------------------------------------------------------------------


async def test_revoking_twice_succeeds_twice_and_keeps_the_first_instant(key_harness: Ring) -> None:
    made = await key_harness.make()
    first = await key_harness.revoke(made.key)
    assert first.revoked_at is not None
    assert await key_harness.revoke(made.key) == first
    both = await asyncio.gather(key_harness.revoke(made.key), key_harness.revoke(made.key))
    assert [*both] == [first, first]


async def test_a_key_that_had_expired_is_revoked_from_there(runtime: RuntimeHarness, key_harness: Ring) -> None:
    made = await key_harness.make(ttl_seconds=60)
    runtime.database.execute("update api_keys set expires_at = 1 where id = ?", made.key.id)
    assert (await key_harness.revoke(made.key)).revoked_at is not None
    told = [event for event in await runtime.read_log() if event.subject == made.key.id]
    assert (told[-1].from_state, told[-1].to_state) == ("expired", "revoked")


async def test_a_key_of_another_zone_is_not_found_and_stays(key_harness: Ring) -> None:
    made = await key_harness.make(OTHER)
    asks = [(ZONE, made.key.id), (ZONE, "nowhere"), ("nowhere", made.key.id)]
    outcomes = await asyncio.gather(
        *(key_harness.revokes.submit(RevokeKey(zone_id, name, "tester")) for zone_id, name in asks),
        return_exceptions=True,
    )
    assert result_names(outcomes) == ["key_not_found"] * 3
    assert isinstance(await key_harness.finds.submit(made.shown), Caller)


async def test_of_many_who_revoke_one_key_at_once_one_moves_it(runtime: RuntimeHarness, key_harness: Ring) -> None:
    for _ in range(ROUNDS):
        made = await key_harness.make()
        await asyncio.gather(*(key_harness.revoke(made.key) for _ in range(10)))
        told = [event for event in await runtime.read_log() if event.subject == made.key.id]
        assert [event.type for event in told] == ["key.create", "key.revoke"]


async def test_from_the_commit_of_its_revocation_on_no_replica_lets_a_key_in(postgres_url: str) -> None:
    async with replicas(postgres_url) as (_, rings):
        for number in range(10 * ROUNDS):
            one, other = rings[number % 2], rings[(number + 1) % 2]
            made = await one.make()
            assert not await other.refused(made.shown)
            await one.revoke(made.key)
            assert await other.refused(made.shown)
            assert await one.refused(made.shown)


async def test_replicas_that_revoke_the_same_keys_in_opposite_order_do_not_stand_in_each_others_way(
    postgres_url: str,
) -> None:
    async with replicas(postgres_url) as (keel, rings):
        for _ in range(ROUNDS):
            made = [(await rings[0].make()).key for _ in range(40)]
            orders = (made, made[::-1])
            revokes = [r.revoke(key) for r, order in zip(rings, orders, strict=True) for key in order]
            assert all(key.revoked_at for key in await asyncio.gather(*revokes))
        assert keel.database.count("events", "type = 'key.revoke'") == 40 * ROUNDS


async def test_a_zone_that_ends_takes_its_keys_with_it_in_the_same_transaction(
    runtime: RuntimeHarness, key_harness: Ring
) -> None:
    lasting, going, gone = await key_harness.make(), await key_harness.make(OTHER), await key_harness.make(OTHER)
    await key_harness.revoke(gone.key)
    await key_harness.stops.submit(StopZone(OTHER, "over", admin(OTHER), ends_zone=True, trace="00-trace"))
    assert await key_harness.refused(going.shown)
    assert isinstance(await key_harness.finds.submit(lasting.shown), Caller)
    told = [event for event in await runtime.read_log() if event.zone_id == OTHER][-2:]
    assert [(event.type, event.subject, event.trace) for event in told] == [
        ("zone.end", OTHER, "00-trace"),
        ("key.revoke", going.key.id, "00-trace"),
    ]


async def test_a_zone_that_is_only_stopped_keeps_its_keys(key_harness: Ring) -> None:
    made = await key_harness.make(OTHER)
    await key_harness.stops.submit(StopZone(OTHER, "enough", admin(OTHER)))
    assert isinstance(await key_harness.finds.submit(made.shown), Caller)


# -- looking, and who may --------------------------------------------------------------------------------------------


async def test_keys_are_listed_newest_first_page_by_page_and_without_their_digests(key_harness: Ring) -> None:
    made = [(await key_harness.make()).key for _ in range(3)]
    await key_harness.make(OTHER)
    first = await key_harness.page(KeyFilter(ZONE, 2))
    rest = await key_harness.page(KeyFilter(ZONE, 2, before=first[-1].id))
    assert [*first, *rest] == made[::-1]
    assert await key_harness.page(KeyFilter(OTHER, 10, before="0")) == []
    with pytest.raises(Problem, match="no zone 'nowhere'"):
        await key_harness.page(KeyFilter("nowhere", 10))


async def test_whoever_speaks_for_a_session_that_has_ended_makes_revokes_and_sees_nothing(
    runtime: RuntimeHarness, key_harness: Ring
) -> None:
    session, foreign = await runtime.spawn(), await runtime.spawn(OTHER)
    made = await key_harness.make()
    await runtime.terminate(session)
    await runtime.terminate(foreign)
    before = await runtime.read_log()
    bearers = [
        Bearer(ZONE, session.id),
        Bearer(ZONE, None, session.id),
        Bearer(ZONE, "never there"),
        Bearer(OTHER, foreign.id),
    ]
    for bearer in bearers:
        outcomes = await asyncio.gather(
            key_harness.make(bearer=bearer),
            key_harness.make("nowhere", bearer=bearer),
            key_harness.revoke(made.key, bearer),
            key_harness.page(KeyFilter(ZONE, 10, bearer=bearer)),
            return_exceptions=True,
        )
        assert result_names(outcomes) == ["session_ended"] * 4, bearer
    assert await runtime.read_log() == before
    live = await runtime.spawn(OTHER)
    assert await key_harness.revoke(made.key, Bearer(OTHER, live.id)), "an administrator crosses zones"


# -- as tables grow ----------------------------------------------------------------------------------------------


async def test_no_statement_scans_or_touches_more_pages_however_many_keys_have_ended(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as keel:
        await keel.put_zone()
        await keel.put_zone(OTHER)
        store = RecordingStore(await open_store(postgres_url))
        ring = Ring(store)
        made = await ring.make()
        await ring.finds.submit(made.shown)
        await ring.page(KeyFilter(ZONE, 10))
        await ring.revoke(made.key)
        await ring.make(OTHER)
        await ring.stops.submit(StopZone(OTHER, "over", admin(OTHER), ends_zone=True))
        own = {name: bound for name, bound in store.statements.items() if name.startswith("keys_")}
        assert own.keys() == {statement.name for statement in Q}
        own["keys_insert"] = Q.keys_insert(batch=[("d", ZONE, new_id(), "n", APP, "s", None, "a", 1, None, None)])
        with contextlib.closing(Planner(postgres_url, "force_generic_plan")) as planner:
            small = {name: planner.run(bound) for name, bound in own.items()}
            keel.database.execute(
                """
                insert into api_keys (zone_id, id, digest, name, application_id, scopes, created_by, created_at,
                                      expires_at, revoked_at)
                select case when n % 2 = 0 then ? else 'zone' || n % 7 end, '0' || to_char(n, 'FM0000000'), 'd', 'n',
                       'app', 's', 'a', 1, case when n % 4 < 2 then 2 end, case when n % 4 >= 2 then 2 end
                from generate_series(1, 20000) n
                """,
                ZONE,
            )
            large = {name: planner.run(bound) for name, bound in own.items()}
        await ring.lanes.drain()
        await store.close()
    assert not {name: plan.nodes for name, plan in large.items() if plan.scans("Seq Scan")}
    assert not {
        name: (small[name].pages, plan.pages) for name, plan in large.items() if plan.pages > 3 * small[name].pages + 12
    }
