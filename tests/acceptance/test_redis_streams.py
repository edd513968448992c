"""Redis beside real servers: nobody waits for it, and whatever happens to it or to them, every entry arrives once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from quarterdeck.bus.redis.slots import slot_key
from quarterdeck.bus.redis.stream_entries import AGENTS, DELEGATIONS, INVOCATIONS, POLICIES, REVOCATIONS, sign
from tests.support.databases import PostgresDatabases
from tests.support.eventually import eventually
from tests.support.redis import DirectRedis, RedisServer
from tests.support.replicas import add_replicas
from tests.support.server import Launch, ServerProcess, Servers, launch_on
from tests.support.zone import FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

KEY = "a key that is long enough"
OFTEN = {"QD_SLOTS_RECONCILE_INTERVAL_MS": "200", "OUTBOX_INTERVAL_MS": "200"}


def beside(launch: Launch, url: str, **more: str) -> Launch:
    return launch.with_environment(REDIS_URL=url, STREAMS_HMAC_KEY=KEY, **OFTEN, **more)


SESSIONS = {f"session.{verb}": verb for verb in ("spawn", "suspend", "resume", "terminate")}
EDGES = {f"delegation.{verb}": f"edge_{verb}" for verb in ("create", "revoke", "expire")}
STATES = ("created", "started", "succeeded", "failed", "timed_out", "canceled", "dead")
CALLS = {f"invocation.{state}": f"invocation.{state}" for state in STATES}
TOLD = {AGENTS: SESSIONS, INVOCATIONS: CALLS, DELEGATIONS: EDGES, POLICIES: EDGES}
"""By stream, and by the type of the event: what its entry is called. `REVOCATIONS` has no names."""
SUBJECT = {
    AGENTS: "agent_session_id",
    INVOCATIONS: "invocation_id",
    DELEGATIONS: "edge_id",
    POLICIES: "edge_id",
    REVOCATIONS: "agent_session_id",
}
Said = list[tuple[str, str, int]]
"""(event, subject, position) of each entry, in order."""


async def told(zone: FreshZone) -> dict[str, Said]:
    """All that the log has to tell, by stream."""
    events = await read_events(zone)
    said = {
        stream: [(names[event["type"]], event["subject"], event["pos"]) for event in events if event["type"] in names]
        for stream, names in TOLD.items()
    }
    ended = [event for event in events if event["type"] == "session.terminate"]
    said[REVOCATIONS] = [("", each["subject"], each["pos"]) for each in ended if not each["data"]["sid_in_use"]]
    return said


def arrived(redis: DirectRedis, zone: FreshZone) -> dict[str, Said]:
    return {
        stream: [
            (fields.get("event", ""), fields[subject], int(fields["pos"]))
            for _, fields in redis.entries(stream)
            if fields["zone_id"] == zone.id
        ]
        for stream, subject in SUBJECT.items()
    }


async def all_arrived(redis: DirectRedis, zone: FreshZone, limit: float = 20) -> None:
    """Once, in the order of the log, on every stream."""
    wanted = await told(zone)

    async def are_there() -> bool:
        return all(redis.client.xlen(stream) >= len(said) for stream, said in wanted.items())

    await eventually(are_there, f"{sum(map(len, wanted.values()))} entries had arrived", limit)
    assert arrived(redis, zone) == wanted
    keys = [entry.dedupe_key for entry in redis.entries()]
    assert len(keys) == len(set(keys))


async def turn(client: httpx.AsyncClient, zone: FreshZone) -> None:
    """A session's life, with all its turns."""
    session = (await spawn(client, zone))["id"]
    for verb in ("suspend", "resume", "suspend", "resume"):
        assert (await client.post(zone.session_path(session, f"/{verb}"))).status_code == 200
    await end(client, zone, session)


async def live(client: httpx.AsyncClient, zone: FreshZone) -> None:
    """A day of two sessions: each kind of thing that can be asked for is asked for, and must be answered."""

    async def done(path: str, asked: dict[str, object]) -> dict[str, Any]:
        answer = await client.post(f"{zone.path}{path}", json=asked)
        assert answer.status_code in (200, 201), answer.text
        return json_object(answer)

    await turn(client, zone)
    own, other = [str((await spawn(client, zone))["id"]) for _ in range(2)]
    lent = {"source_session_id": own, "target_session_id": other, "scopes": ["agent:lifecycle"]}
    edge = (await done("/delegations", {**lent, "ttl_seconds": 60}))["id"]
    service = (await done(f"/agents/{own}/services", {"endpoint_url": f"http://example.org/{own}"}))["id"]
    asked = {"service_id": service, "method": "m", "source_session_id": other}
    for key in ("completed", "left"):
        await done("/invocations", {**asked, "idempotency_key": key})
    [lease] = (await done(f"/services/{service}/claim", {}))["items"]
    report = {"status": "succeeded", "attempt_token": lease["attempt_token"]}
    await done(f"/invocations/{lease['id']}/complete", report)
    assert (await client.delete(f"{zone.path}/delegations/{edge}")).status_code == 200
    # What is left goes with it.
    for session in (other, own):
        await end(client, zone, session)


def figure(text: str, name: str) -> float:
    """A sample of `/metrics`; nothing at all counts as none."""
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)


async def killed_in_the_middle(server: ServerProcess, work: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
    server.kill()
    await asyncio.gather(*work, return_exceptions=True)


# -- stopped, wiped


async def test_two_suspends_and_resumes_give_four_events_and_four_entries(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    zone = await create_zone(await servers.start(beside(launch, redis.url)))
    async with zone.client() as client:
        await turn(client, zone)
    await all_arrived(redis, zone)
    verbs = ["spawn", "suspend", "resume", "suspend", "resume", "terminate"]
    assert [verb for verb, _, _ in arrived(redis, zone)[AGENTS]] == verbs
    [revoked] = redis.entries(REVOCATIONS)
    assert revoked.fields["session_id"] == "sid"
    assert revoked.fields["_sig"] == sign(KEY.encode(), REVOCATIONS, revoked.fields)


async def test_calls_and_lent_authority_are_told_on_streams_of_their_own(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    zone = await create_zone(await servers.start(beside(launch, redis.url)))
    async with zone.client() as client:
        lender, borrower = [(await spawn(client, zone))["id"] for _ in range(2)]
        lent = {"source_session_id": lender, "target_session_id": borrower, "scopes": ["agent:lifecycle"]}
        edge = json_object(await client.post(f"{zone.path}/delegations", json={**lent, "ttl_seconds": 60}))["id"]
        service = json_object(
            await client.post(
                f"{zone.path}/agent-services", json={"application_id": "app", "endpoint_url": "http://example.org/"}
            )
        )["id"]
        asked = {"service_id": service, "idempotency_key": "k", "method": "m", "source_session_id": lender}
        call = json_object(await client.post(f"{zone.path}/invocations", json=asked))["id"]
        assert (await client.delete(f"{zone.path}/delegations/{edge}")).status_code == 200
        assert (await client.post(f"{zone.path}/invocations/{call}/cancel", json={})).status_code == 200

    def told_on(stream: str, *names: str) -> list[tuple[str, ...]]:
        return [tuple(entry.fields[name] for name in names) for entry in redis.entries(stream)]

    async def are_there() -> bool:
        return len(redis.entries(INVOCATIONS)) == 2

    await eventually(are_there, "both entries about the call had arrived")
    assert told_on(INVOCATIONS, "event", "invocation_id", "service_id") == [
        ("invocation.created", call, service),
        ("invocation.canceled", call, service),
    ]
    edges = told_on(DELEGATIONS, "event", "edge_id", "source_session_id", "target_session_id", "epoch")
    assert edges == [("edge_create", edge, lender, borrower, "1"), ("edge_revoke", edge, lender, borrower, "2")]
    assert told_on(POLICIES, "zone_id") == [(zone.id,), (zone.id,)]


async def test_with_redis_stopped_every_call_answers_and_when_it_returns_every_entry_arrives(
    launch: Launch, servers: Servers, own_redis: RedisServer
) -> None:
    server = await servers.start(beside(launch, own_redis.url))
    zone = await create_zone(server)
    async with zone.client() as client:
        await live(client, zone)
        await all_arrived(own_redis.direct, zone)
        own_redis.stop()
        await asyncio.gather(*(live(client, zone) for _ in range(5)))
        assert (await client.get("/ready")).status_code == 200
        assert (await client.get(f"{zone.path}/quotas")).status_code == 200
        own_redis.start()
        await live(client, zone)
        own_redis.kill()
        await asyncio.gather(*(live(client, zone) for _ in range(5)))
        assert (await client.get("/ready")).status_code == 200
        own_redis.start()
    await all_arrived(own_redis.direct, zone)


async def test_a_server_starts_with_redis_away_and_tells_when_it_comes(
    launch: Launch, servers: Servers, own_redis: RedisServer
) -> None:
    own_redis.stop()
    zone = await create_zone(await servers.start(beside(launch, own_redis.url)))
    async with zone.client() as client:
        await live(client, zone)
        assert (await client.get("/ready")).status_code == 200
    own_redis.start()
    await all_arrived(own_redis.direct, zone)


async def test_a_server_that_is_killed_in_the_middle_leaves_nothing_untold_and_nothing_told_twice(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    wanted = beside(launch, redis.url)
    server = await servers.start(wanted)
    zone = await create_zone(server)
    for _ in range(3):
        async with zone.client() as client:
            await killed_in_the_middle(server, [asyncio.create_task(live(client, zone)) for _ in range(6)])
        server = await servers.start(wanted)
        zone = FreshZone(server, zone.id)
    await all_arrived(redis, zone)


async def test_wiping_redis_in_mid_load_loses_nothing_and_oversubscribes_nothing(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    zone = await create_zone(await servers.start(beside(launch, redis.url)), max_concurrent=8)
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        body = {"application_id": "app", "parent_id": root}
        asked = [asyncio.create_task(client.post(zone.sessions_path, json=body)) for _ in range(100)]
        for number, answer in enumerate(asyncio.as_completed(asked)):
            assert (await answer).status_code in (201, 429)
            if number % 20 == 0:
                redis.wipe()
        statuses = [task.result().status_code for task in asked]
    assert (statuses.count(201), statuses.count(429)) == (8, 92)
    await eventually(shows(redis, zone, "8"), "eight slots were shown as taken")


def shows(redis: DirectRedis, zone: FreshZone, taken: str) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return redis.client.get(slot_key(zone.id)) == taken

    return ask


async def test_slots_that_lie_are_put_right_and_never_believed(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    zone = await create_zone(await servers.start(beside(launch, redis.url)), max_concurrent=3)
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        redis.client.set(slot_key(zone.id), "3")
        for _ in range(3):
            await spawn(client, zone, parent_id=root)
        redis.client.set(slot_key(zone.id), "0")
        refused = await client.post(zone.sessions_path, json={"application_id": "app", "parent_id": root})
        assert_problem(refused, 429, "agent_concurrency_limit_exceeded")
        await eventually(shows(redis, zone, "3"), "three slots were shown as taken")
        redis.client.set(slot_key(zone.id), "1")
        await eventually(shows(redis, zone, "3"), "the lie was put right")

        async def is_counted() -> bool:
            text = (await client.get("/metrics")).text
            if figure(text, 'quarterdeck_slots_repairs_total{name="redis"}') >= 1:
                return True
            # What was still on its way may have put it right before anybody compared: another lie, for those who do.
            redis.client.set(slot_key(zone.id), "1")
            return False

        await eventually(is_counted, "the repair was counted")


# -- replicas


async def test_of_three_replicas_one_tells_at_a_time_though_the_holder_is_frozen_and_others_are_killed(
    postgres: PostgresDatabases, servers: Servers, redis: DirectRedis
) -> None:
    url = postgres.create_migrated()
    first = await servers.start(beside(launch_on(url, servers.directory), redis.url))
    zone = await create_zone(first)

    async def busy(server: ServerProcess, count: int) -> None:
        async with server.client(zone.token()) as client:
            work = [live(client, zone), *(turn(client, zone) for _ in range(count))]
            await asyncio.gather(*work, return_exceptions=True)

    _, second, third = await add_replicas(first, servers, 2)
    await busy(first, 5)
    await all_arrived(redis, zone)  # so the first one holds the lease
    work = [asyncio.create_task(busy(server, 10)) for server in (second, third)]
    first.freeze()
    await asyncio.gather(*work)
    await all_arrived(redis, FreshZone(second, zone.id), limit=40)
    first.thaw()
    await asyncio.gather(*(busy(server, 5) for server in (first, second, third)))
    for server in (second, third):
        async with server.client(zone.token()) as client, asyncio.TaskGroup() as beside_it:
            beside_it.create_task(busy(first, 10))
            await killed_in_the_middle(server, [asyncio.create_task(live(client, zone)) for _ in range(5)])
    await all_arrived(redis, zone, limit=40)
    by_session: dict[str, list[int]] = defaultdict(list)
    for _, session, pos in arrived(redis, zone)[AGENTS]:
        by_session[session].append(pos)
    assert all(positions == sorted(positions) for positions in by_session.values())
    servers.close()
    postgres.drop(url)


# -- looked at


async def test_what_redis_refuses_is_shown_and_requeued(launch: Launch, servers: Servers, redis: DirectRedis) -> None:
    server = await servers.start(beside(launch, redis.url, OUTBOX_MAX_ATTEMPTS="1"))
    zone = await create_zone(server)
    redis.client.set(AGENTS, "in the way")
    async with zone.client() as client, server.client() as admin:
        await turn(client, zone)

        async def sink() -> dict[str, Any]:
            return json_object(await admin.get("/sinks/redis-streams"))

        async def has_died() -> bool:
            return int((await sink())["dead"]) == 6

        await eventually(has_died, "six entries were dead")
        found = await sink()
        assert (found["is_configured"], found["waiting"], len(found["entries"])) == (True, 0, 6)
        assert "WRONGTYPE" in found["entries"][0]["error"]
        assert found["entries"][0]["fields"]["zone_id"] == zone.id
        keys, listed, own = json_object(await admin.get("/sinks"))["items"]
        assert (keys["name"], keys["dead"]) == ("redis-keys", 0)
        assert (listed["name"], listed["dead"]) == ("redis-streams", 6)
        assert (own["name"], own["dead"]) == ("webhooks", 0)
        redis.client.delete(AGENTS)
        answer = await admin.post("/sinks/redis-streams/requeue", json={"all": True})
        assert json_object(answer) == {"requeued": 6}
        await all_arrived(redis, zone)
        text = (await admin.get("/metrics")).text
        for figure in ("lag_events", "lag_seconds", "stuck", "delivered_total", "dead_total", "refused_total"):
            assert f'quarterdeck_sink_{figure}{{name="redis-streams"}}' in text
        assert 'quarterdeck_sink_dead_total{name="redis-streams"} 6.0' in text


async def test_an_outage_is_shown_with_its_reason(launch: Launch, servers: Servers, own_redis: RedisServer) -> None:
    server = await servers.start(beside(launch, own_redis.url))
    zone = await create_zone(server)
    own_redis.stop()
    async with zone.client() as client, server.client() as admin:
        await live(client, zone)

        async def is_told() -> bool:
            found = json_object(await admin.get("/sinks/redis-streams"))
            return bool(found["error"]) and found["lag_events"] > 0

        await eventually(is_told, "the sink said what is wrong")


# -- refused starts


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"REDIS_URL": "redis://127.0.0.1:1"}, "STREAMS_HMAC_KEY"),
        ({"REDIS_URL": "redis://127.0.0.1:1", "STREAMS_HMAC_KEY": "hush"}, "STREAMS_HMAC_KEY is '***'"),
        ({"REDIS_URL": "http://u:hush@h", "STREAMS_HMAC_KEY": KEY}, "REDIS_URL is 'http://u:***@h'"),
        ({"REDIS_URL": "redis://h:port", "STREAMS_HMAC_KEY": KEY}, "REDIS_URL is "),
        ({"REDIS_URL": "redis://h/0?nonsense=1", "STREAMS_HMAC_KEY": KEY}, "no connection to Redis has"),
    ],
)
async def test_a_redis_that_can_never_be_used_stops_the_start_with_a_sentence(
    servers: Servers, told: dict[str, str], said: str
) -> None:
    refused = await servers.start_expecting_failure(Launch(servers.directory / "data").with_environment(**told))
    assert refused.exit_code == 1
    assert said in refused.log_text
    assert "hush" not in refused.log_text
    assert "Traceback" not in refused.log_text
