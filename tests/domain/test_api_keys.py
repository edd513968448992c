"""API keys, on both engines: creation within the limit, authentication, and revocation effective at commit."""

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
from quarterdeck.core.paging import PageFilter
from quarterdeck.domain.api_keys import operations as keys
from quarterdeck.domain.api_keys.component import ApiKeys
from quarterdeck.domain.api_keys.model import KEYS_MAX, ApiKey, CreateKey, RevokeKey
from quarterdeck.domain.api_keys.queries import Q
from quarterdeck.domain.sessions.model import StopZone
from quarterdeck.engine.lanes import zones_of
from tests.support.builders import APP, ZONE, admin
from tests.support.query_plans import Planner, RecordingStore
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime, open_store, result_names

SECRET = b"s" * 32
OTHER_ZONE = "other.zone"


@dataclass(frozen=True)
class CreatedKey:
    key: ApiKey
    text: str

    @property
    def parsed(self) -> ParsedApiKey:
        parsed = api_key.parse(self.text.encode())
        assert parsed is not None
        return parsed


class KeyHarness:
    """The API keys of one process."""

    def __init__(self, runtime: RuntimeHarness) -> None:
        self.engine, self.lanes = runtime.engine, runtime.lanes
        parts = ApiKeys(runtime.shared, ("agent:lifecycle",))
        self.create_lane, self.revoke_lane = parts.create_lane, parts.revoke_lane
        self.authenticate_lane, self.stop_lane = parts.authenticate_lane, runtime.stop_zone_lane

    def create_command(self, zone_id: str = ZONE, **fields: object) -> tuple[CreateKey, str]:
        key_id = new_id()
        text = api_key.format_key(zone_id, key_id, SECRET)
        defaults: dict[str, object] = {
            "id": key_id,
            "zone_id": zone_id,
            "digest": api_key.digest(text.encode()),
            "name": "name",
            "application_id": APP,
            "scopes": "agent:lifecycle",
            "actor": "tester",
        }
        return msgspec.convert(defaults | fields, CreateKey, from_attributes=True), text

    async def create(self, zone_id: str = ZONE, **fields: object) -> CreatedKey:
        command, text = self.create_command(zone_id, **fields)
        return CreatedKey(await self.create_lane.submit(command), text)

    async def create_many(self, count: int) -> None:
        await asyncio.gather(*(self.create() for _ in range(count)))

    async def revoke(self, key: ApiKey, bearer: Bearer | None = None) -> ApiKey:
        return await self.revoke_lane.submit(RevokeKey(key.zone_id, key.id, "tester", bearer, "00-trace"))

    async def is_refused(self, parsed: ParsedApiKey) -> bool:
        try:
            await self.authenticate_lane.submit(parsed)
        except Unauthenticated as problem:
            assert (problem.code, problem.detail) == ("invalid_token", api_key.invalid_key_error().detail)
            return True
        return False

    async def list_keys(self, filters: PageFilter) -> list[ApiKey]:
        return await self.engine.read(lambda tx: keys.list_keys(tx, filters), zones=zones_of([filters]))


@pytest.fixture
async def key_harness(runtime: RuntimeHarness) -> AsyncIterator[KeyHarness]:
    await runtime.put_zone(OTHER_ZONE)
    harness = KeyHarness(runtime)
    yield harness
    await harness.lanes.drain()


@contextlib.asynccontextmanager
async def replicas(url: str) -> AsyncIterator[tuple[RuntimeHarness, list[KeyHarness]]]:
    async with open_runtime(url) as first, open_runtime(url) as second:
        await first.put_zone()
        harnesses = [KeyHarness(first), KeyHarness(second)]
        yield first, harnesses
        for harness in harnesses:
            await harness.lanes.drain()


# -- authentication ----------------------------------------------------------------------------------------------


async def test_api_key_authenticates_its_application_in_its_zone(key_harness: KeyHarness) -> None:
    for zone_id in (ZONE, OTHER_ZONE):
        created = await key_harness.create(zone_id, scopes="a b")
        name = f"key:{created.key.id}"
        assert await key_harness.authenticate_lane.submit(created.parsed) == Caller(
            name, APP, zone_id, frozenset({"a", "b"}), sid=name, is_local=True
        )


async def test_only_the_digest_is_stored_and_the_log_has_neither_digest_nor_secret(
    runtime: RuntimeHarness, key_harness: KeyHarness
) -> None:
    created = await key_harness.create()
    await key_harness.revoke(created.key)
    [stored] = runtime.database.execute("select * from api_keys")
    assert SECRET.hex() not in str(stored)
    assert created.parsed.digest in stored
    log = str(await runtime.read_log())
    assert created.key.id in log
    assert SECRET.hex() not in log
    assert created.parsed.digest not in log


async def test_api_key_with_wrong_secret_zone_or_id_is_refused(
    runtime: RuntimeHarness, key_harness: KeyHarness
) -> None:
    created, other = await key_harness.create(), await key_harness.create(OTHER_ZONE)
    wrong_digest = api_key.digest(api_key.format_key(ZONE, created.key.id, b"t" * 32).encode())
    forged = [
        msgspec.structs.replace(created.parsed, digest=wrong_digest),
        msgspec.structs.replace(created.parsed, digest=other.parsed.digest),
        msgspec.structs.replace(created.parsed, zone_id=OTHER_ZONE),
        msgspec.structs.replace(created.parsed, zone_id="missing"),
        msgspec.structs.replace(created.parsed, id=other.key.id),
        msgspec.structs.replace(created.parsed, id=new_id()),
    ]
    assert all(await asyncio.gather(*(key_harness.is_refused(parsed) for parsed in forged)))
    assert isinstance(await key_harness.authenticate_lane.submit(created.parsed), Caller)
    # The digest covers the zone: a row moved to another zone in the database does not authenticate there.
    runtime.database.execute("update api_keys set zone_id = ? where id = ?", OTHER_ZONE, created.key.id)
    moved = CreatedKey(created.key, api_key.format_key(OTHER_ZONE, created.key.id, SECRET))
    assert await key_harness.is_refused(moved.parsed)


async def test_expired_key_is_refused_and_not_counted_before_any_sweep(
    runtime: RuntimeHarness, key_harness: KeyHarness
) -> None:
    created = await key_harness.create(ttl_seconds=3_600)
    assert created.key.expires_at == created.key.created_at + 3_600_000
    await key_harness.create_many(KEYS_MAX - 1)
    with pytest.raises(LimitReached):
        await key_harness.create()
    runtime.database.execute("update api_keys set expires_at = created_at where id = ?", created.key.id)
    assert await key_harness.is_refused(created.parsed)
    await key_harness.create()
    with pytest.raises(LimitReached):
        await key_harness.create()


async def test_concurrent_authentications_each_return_their_own_caller(key_harness: KeyHarness) -> None:
    created = [await key_harness.create(application_id=f"app-{n}") for n in range(20)]
    parsed = [key.parsed for key in created for _ in range(5)]
    callers = await asyncio.gather(*(key_harness.authenticate_lane.submit(key) for key in parsed))
    assert [caller.client_id for caller in callers] == [f"app-{n}" for n in range(20) for _ in range(5)]


# -- creation ----------------------------------------------------------------------------------------------------


async def test_concurrent_creations_do_not_exceed_the_key_limit_of_a_zone(key_harness: KeyHarness) -> None:
    await key_harness.create_many(KEYS_MAX - 5)
    for _ in range(ROUNDS):
        commands = [key_harness.create_command()[0] for _ in range(40)]
        outcomes = await asyncio.gather(
            *(key_harness.create_lane.submit(command) for command in commands), return_exceptions=True
        )
        assert result_names(outcomes).count("ApiKey") == 5
        assert result_names(outcomes).count("key_limit_exceeded") == 35
        for outcome in outcomes:
            if isinstance(outcome, ApiKey):
                await key_harness.revoke(outcome)
    await key_harness.create(OTHER_ZONE)


async def test_replicas_together_do_not_exceed_the_key_limit(postgres_url: str) -> None:
    async with replicas(postgres_url) as (runtime, harnesses):
        await harnesses[0].create_many(KEYS_MAX - 5)
        for _ in range(ROUNDS):
            requests = [harnesses[n % 2].create_lane.submit(harnesses[n % 2].create_command()[0]) for n in range(60)]
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            assert result_names(outcomes).count("ApiKey") == 5
            live = runtime.database.count("api_keys", "revoked_at is null")
            assert live == KEYS_MAX
            for outcome in outcomes:
                if isinstance(outcome, ApiKey):
                    await harnesses[1].revoke(outcome)


async def test_key_limit_error_names_bound_limit_and_usage(key_harness: KeyHarness) -> None:
    await key_harness.create_many(KEYS_MAX)
    with pytest.raises(LimitReached) as problem:
        await key_harness.create()
    assert problem.value.members == {
        "bound": "max_keys",
        "limit": KEYS_MAX,
        "used": KEYS_MAX,
        "frees": "a key of the zone is revoked or expires",
    }


async def test_key_creation_is_refused_in_a_missing_or_ended_zone(
    runtime: RuntimeHarness, key_harness: KeyHarness
) -> None:
    await key_harness.stop_lane.submit(StopZone(OTHER_ZONE, "obsolete", admin(OTHER_ZONE), ends_zone=True))
    commands = [key_harness.create_command(zone_id)[0] for zone_id in ("missing", OTHER_ZONE, ZONE)]
    outcomes = await asyncio.gather(
        *(key_harness.create_lane.submit(command) for command in commands), return_exceptions=True
    )
    assert result_names(outcomes) == ["zone_not_found", "zone_ended", "ApiKey"]


async def test_key_can_be_bound_only_to_a_live_session_of_its_zone(
    runtime: RuntimeHarness, key_harness: KeyHarness
) -> None:
    live, ended, expired = [await runtime.spawn() for _ in range(3)]
    foreign = await runtime.spawn(OTHER_ZONE)
    await runtime.terminate(ended)
    runtime.database.expire_sessions(expired)
    session_ids = [session.id for session in (live, ended, expired, foreign)] + ["missing"]
    outcomes = await asyncio.gather(
        *(
            key_harness.create_lane.submit(key_harness.create_command(session_id=session_id)[0])
            for session_id in session_ids
        ),
        return_exceptions=True,
    )
    assert result_names(outcomes) == ["ApiKey", *["agent_not_found"] * 4]
    texts = {str(o).replace(n, "?") for o, n in zip(outcomes, session_ids, strict=True) if isinstance(o, Problem)}
    assert len(texts) == 1, "the error does not reveal which case it was"


async def test_caller_of_a_session_bound_key_has_the_session_as_bearer(
    runtime: RuntimeHarness, key_harness: KeyHarness
) -> None:
    session = await runtime.spawn()
    created = await key_harness.create(session_id=session.id)
    caller = await key_harness.authenticate_lane.submit(created.parsed)
    assert caller.bearer == Bearer(ZONE, session.id, None)


async def test_creation_and_revocation_are_each_logged_once(runtime: RuntimeHarness, key_harness: KeyHarness) -> None:
    key = (await key_harness.create(ttl_seconds=60, trace="00-trace")).key
    await key_harness.revoke(key)
    await key_harness.revoke(key)
    created, revoked = [event for event in await runtime.read_log() if event.subject == key.id]
    assert (created.type, created.actor, created.to_state) == ("key.create", "tester", "live")
    assert (revoked.type, revoked.from_state, revoked.to_state) == ("key.revoke", "live", "revoked")
    assert (created.trace, revoked.trace) == ("00-trace", "00-trace")
    assert msgspec.json.decode(created.data)["scopes"] == ["agent:lifecycle"]


# -- revocation --------------------------------------------------------------------------------------------------


async def test_revoking_twice_succeeds_and_keeps_the_first_revoked_at(key_harness: KeyHarness) -> None:
    created = await key_harness.create()
    first = await key_harness.revoke(created.key)
    assert first.revoked_at is not None
    assert await key_harness.revoke(created.key) == first
    both = await asyncio.gather(key_harness.revoke(created.key), key_harness.revoke(created.key))
    assert [*both] == [first, first]


async def test_revocation_of_an_expired_key_is_logged_as_expired_to_revoked(
    runtime: RuntimeHarness, key_harness: KeyHarness
) -> None:
    created = await key_harness.create(ttl_seconds=60)
    runtime.database.execute("update api_keys set expires_at = 1 where id = ?", created.key.id)
    assert (await key_harness.revoke(created.key)).revoked_at is not None
    events = [event for event in await runtime.read_log() if event.subject == created.key.id]
    assert (events[-1].from_state, events[-1].to_state) == ("expired", "revoked")


async def test_revoking_a_key_of_another_zone_is_not_found_and_changes_nothing(key_harness: KeyHarness) -> None:
    created = await key_harness.create(OTHER_ZONE)
    refs = [(ZONE, created.key.id), (ZONE, "missing"), ("missing", created.key.id)]
    outcomes = await asyncio.gather(
        *(key_harness.revoke_lane.submit(RevokeKey(zone_id, key_id, "tester")) for zone_id, key_id in refs),
        return_exceptions=True,
    )
    assert result_names(outcomes) == ["key_not_found"] * 3
    assert isinstance(await key_harness.authenticate_lane.submit(created.parsed), Caller)


async def test_concurrent_revocations_of_a_key_log_one_event(runtime: RuntimeHarness, key_harness: KeyHarness) -> None:
    for _ in range(ROUNDS):
        created = await key_harness.create()
        await asyncio.gather(*(key_harness.revoke(created.key) for _ in range(10)))
        events = [event for event in await runtime.read_log() if event.subject == created.key.id]
        assert [event.type for event in events] == ["key.create", "key.revoke"]


async def test_revoked_key_is_refused_by_every_replica_from_the_commit_on(postgres_url: str) -> None:
    async with replicas(postgres_url) as (_, harnesses):
        for number in range(10 * ROUNDS):
            one, other = harnesses[number % 2], harnesses[(number + 1) % 2]
            created = await one.create()
            assert not await other.is_refused(created.parsed)
            await one.revoke(created.key)
            assert await other.is_refused(created.parsed)
            assert await one.is_refused(created.parsed)


async def test_replicas_revoking_keys_in_opposite_order_do_not_deadlock(postgres_url: str) -> None:
    async with replicas(postgres_url) as (runtime, harnesses):
        for _ in range(ROUNDS):
            created = [(await harnesses[0].create()).key for _ in range(40)]
            orders = (created, created[::-1])
            requests = [harness.revoke(key) for harness, order in zip(harnesses, orders, strict=True) for key in order]
            assert all(key.revoked_at for key in await asyncio.gather(*requests))
        assert runtime.database.count("events", "type = 'key.revoke'") == 40 * ROUNDS


async def test_ending_a_zone_revokes_its_live_keys_in_the_same_transaction(
    runtime: RuntimeHarness, key_harness: KeyHarness
) -> None:
    unaffected, live, revoked = (
        await key_harness.create(),
        await key_harness.create(OTHER_ZONE),
        await key_harness.create(OTHER_ZONE),
    )
    await key_harness.revoke(revoked.key)
    await key_harness.stop_lane.submit(
        StopZone(OTHER_ZONE, "obsolete", admin(OTHER_ZONE), ends_zone=True, trace="00-trace")
    )
    assert await key_harness.is_refused(live.parsed)
    assert isinstance(await key_harness.authenticate_lane.submit(unaffected.parsed), Caller)
    events = [event for event in await runtime.read_log() if event.zone_id == OTHER_ZONE][-2:]
    assert [(event.type, event.subject, event.trace) for event in events] == [
        ("zone.end", OTHER_ZONE, "00-trace"),
        ("key.revoke", live.key.id, "00-trace"),
    ]


async def test_stopping_a_zone_without_ending_it_keeps_its_keys(key_harness: KeyHarness) -> None:
    created = await key_harness.create(OTHER_ZONE)
    await key_harness.stop_lane.submit(StopZone(OTHER_ZONE, "stopped", admin(OTHER_ZONE)))
    assert isinstance(await key_harness.authenticate_lane.submit(created.parsed), Caller)


# -- listing and authorization -----------------------------------------------------------------------------------


async def test_keys_are_listed_newest_first_in_pages_without_digests(key_harness: KeyHarness) -> None:
    created = [(await key_harness.create()).key for _ in range(3)]
    await key_harness.create(OTHER_ZONE)
    first = await key_harness.list_keys(PageFilter(zone_id=ZONE, limit=2))
    rest = await key_harness.list_keys(PageFilter(zone_id=ZONE, limit=2, before=first[-1].id))
    assert [*first, *rest] == created[::-1]
    assert await key_harness.list_keys(PageFilter(zone_id=OTHER_ZONE, limit=10, before="0")) == []
    with pytest.raises(Problem, match="Zone 'missing' does not exist"):
        await key_harness.list_keys(PageFilter(zone_id="missing", limit=10))


async def test_bearer_of_an_ended_session_cannot_create_revoke_or_list_keys(
    runtime: RuntimeHarness, key_harness: KeyHarness
) -> None:
    session, foreign = await runtime.spawn(), await runtime.spawn(OTHER_ZONE)
    created = await key_harness.create()
    await runtime.terminate(session)
    await runtime.terminate(foreign)
    before = await runtime.read_log()
    bearers = [
        Bearer(ZONE, session.id),
        Bearer(ZONE, None, session.id),
        Bearer(ZONE, "never-existed"),
        Bearer(OTHER_ZONE, foreign.id),
    ]
    for bearer in bearers:
        outcomes = await asyncio.gather(
            key_harness.create(bearer=bearer),
            key_harness.create("missing", bearer=bearer),
            key_harness.revoke(created.key, bearer),
            key_harness.list_keys(PageFilter(zone_id=ZONE, limit=10, bearer=bearer)),
            return_exceptions=True,
        )
        assert result_names(outcomes) == ["session_ended"] * 4, bearer
    assert await runtime.read_log() == before
    live = await runtime.spawn(OTHER_ZONE)
    assert await key_harness.revoke(created.key, Bearer(OTHER_ZONE, live.id)), "an administrator can act in any zone"


# -- query plans -------------------------------------------------------------------------------------------------


async def test_query_plans_do_not_degrade_with_many_ended_keys(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as runtime:
        await runtime.put_zone()
        await runtime.put_zone(OTHER_ZONE)
        store = RecordingStore(await open_store(postgres_url))
        harness = KeyHarness(RuntimeHarness(postgres_url, (store, store), RuntimeOptions()))
        created = await harness.create()
        await harness.authenticate_lane.submit(created.parsed)
        await harness.list_keys(PageFilter(zone_id=ZONE, limit=10))
        await harness.revoke(created.key)
        await harness.create(OTHER_ZONE)
        await harness.stop_lane.submit(StopZone(OTHER_ZONE, "obsolete", admin(OTHER_ZONE), ends_zone=True))
        statements = {name: bound for name, bound in store.statements.items() if name.startswith("keys_")}
        assert statements.keys() == {statement.name for statement in Q}
        statements["keys_insert"] = Q.keys_insert(
            batch=[("d", ZONE, new_id(), "n", APP, "s", None, "a", 1, None, None)]
        )
        with contextlib.closing(Planner(postgres_url, "force_generic_plan")) as planner:
            small = {name: planner.run(bound) for name, bound in statements.items()}
            runtime.database.execute(
                """
                insert into api_keys (zone_id, id, digest, name, application_id, scopes, created_by, created_at,
                                      expires_at, revoked_at)
                select case when n % 2 = 0 then ? else 'zone' || n % 7 end, '0' || to_char(n, 'FM0000000'), 'd', 'n',
                       'app', 's', 'a', 1, case when n % 4 < 2 then 2 end, case when n % 4 >= 2 then 2 end
                from generate_series(1, 20000) n
                """,
                ZONE,
            )
            large = {name: planner.run(bound) for name, bound in statements.items()}
        await harness.lanes.drain()
        await store.close()
    assert not {name: plan.nodes for name, plan in large.items() if plan.scans("Seq Scan")}
    assert not {
        name: (small[name].pages, plan.pages) for name, plan in large.items() if plan.pages > 3 * small[name].pages + 12
    }
