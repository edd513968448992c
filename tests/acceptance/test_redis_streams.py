"""Redis streams: no request waits for Redis, and every entry arrives once despite outages, kills and wipes."""

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
SHORT_INTERVALS = {"QD_SLOTS_RECONCILE_INTERVAL_MS": "200", "OUTBOX_INTERVAL_MS": "200"}


def with_redis(launch: Launch, url: str, **more: str) -> Launch:
    return launch.with_environment(REDIS_URL=url, STREAMS_HMAC_KEY=KEY, **SHORT_INTERVALS, **more)


SESSIONS = {f"session.{verb}": verb for verb in ("spawn", "suspend", "resume", "terminate")}
EDGES = {f"delegation.{verb}": f"edge_{verb}" for verb in ("create", "revoke", "expire")}
STATES = ("created", "started", "succeeded", "failed", "timed_out", "canceled", "dead")
CALLS = {f"invocation.{state}": f"invocation.{state}" for state in STATES}
ENTRY_NAMES = {AGENTS: SESSIONS, INVOCATIONS: CALLS, DELEGATIONS: EDGES, POLICIES: EDGES}
"""The name of the entry, by stream and event type. Entries of `REVOCATIONS` have no name."""
SUBJECT_FIELDS = {
    AGENTS: "agent_session_id",
    INVOCATIONS: "invocation_id",
    DELEGATIONS: "edge_id",
    POLICIES: "edge_id",
    REVOCATIONS: "agent_session_id",
}
Entries = list[tuple[str, str, int]]
"""Event, subject and position of each entry, in order."""


async def expected_entries(zone: FreshZone) -> dict[str, Entries]:
    """The entries of all events in the log, by stream."""
    events = await read_events(zone)
    expected = {
        stream: [(names[event["type"]], event["subject"], event["pos"]) for event in events if event["type"] in names]
        for stream, names in ENTRY_NAMES.items()
    }
    terminations = [event for event in events if event["type"] == "session.terminate"]
    expected[REVOCATIONS] = [
        ("", event["subject"], event["pos"]) for event in terminations if not event["data"]["sid_in_use"]
    ]
    return expected


def read_entries(redis: DirectRedis, zone: FreshZone) -> dict[str, Entries]:
    return {
        stream: [
            (fields.get("event", ""), fields[subject], int(fields["pos"]))
            for _, fields in redis.entries(stream)
            if fields["zone_id"] == zone.id
        ]
        for stream, subject in SUBJECT_FIELDS.items()
    }


async def assert_all_entries_arrived(redis: DirectRedis, zone: FreshZone, limit: float = 20) -> None:
    """Wait for all entries and assert that each arrived once, in log order, on every stream."""
    expected = await expected_entries(zone)

    async def have_arrived() -> bool:
        return all(redis.client.xlen(stream) >= len(entries) for stream, entries in expected.items())

    await eventually(have_arrived, f"{sum(map(len, expected.values()))} entries had arrived", limit)
    assert read_entries(redis, zone) == expected
    keys = [entry.dedupe_key for entry in redis.entries()]
    assert len(keys) == len(set(keys))


async def run_one_session(client: httpx.AsyncClient, zone: FreshZone) -> None:
    """Spawn, suspend, resume and end one session."""
    session = (await spawn(client, zone))["id"]
    for verb in ("suspend", "resume", "suspend", "resume"):
        assert (await client.post(zone.session_path(session, f"/{verb}"))).status_code == 200
    await end(client, zone, session)


async def run_scenario(client: httpx.AsyncClient, zone: FreshZone) -> None:
    """Send requests of every kind for two sessions. Each must succeed."""

    async def post(path: str, body: dict[str, object]) -> dict[str, Any]:
        response = await client.post(f"{zone.path}{path}", json=body)
        assert response.status_code in (200, 201), response.text
        return json_object(response)

    await run_one_session(client, zone)
    source, target = [str((await spawn(client, zone))["id"]) for _ in range(2)]
    delegation = {"source_session_id": source, "target_session_id": target, "scopes": ["agent:lifecycle"]}
    edge = (await post("/delegations", {**delegation, "ttl_seconds": 60}))["id"]
    service = (await post(f"/agents/{source}/services", {"endpoint_url": f"http://example.org/{source}"}))["id"]
    invocation = {"service_id": service, "method": "m", "source_session_id": target}
    for key in ("completed", "open"):
        await post("/invocations", {**invocation, "idempotency_key": key})
    [lease] = (await post(f"/services/{service}/claim", {}))["items"]
    report = {"status": "succeeded", "attempt_token": lease["attempt_token"]}
    await post(f"/invocations/{lease['id']}/complete", report)
    assert (await client.delete(f"{zone.path}/delegations/{edge}")).status_code == 200
    # The open invocation ends with its session.
    for session in (target, source):
        await end(client, zone, session)


def read_metric(text: str, name: str) -> float:
    """A sample of `/metrics`. A missing sample is 0."""
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)


async def kill_during_work(server: ServerProcess, work: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
    server.kill()
    await asyncio.gather(*work, return_exceptions=True)


# -- outages and wipes


async def test_each_session_event_becomes_one_stream_entry(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    zone = await create_zone(await servers.start(with_redis(launch, redis.url)))
    async with zone.client() as client:
        await run_one_session(client, zone)
    await assert_all_entries_arrived(redis, zone)
    verbs = ["spawn", "suspend", "resume", "suspend", "resume", "terminate"]
    assert [verb for verb, _, _ in read_entries(redis, zone)[AGENTS]] == verbs
    [revoked] = redis.entries(REVOCATIONS)
    assert revoked.fields["session_id"] == "sid"
    assert revoked.fields["_sig"] == sign(KEY.encode(), REVOCATIONS, revoked.fields)


async def test_invocations_and_delegations_have_their_own_streams(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    zone = await create_zone(await servers.start(with_redis(launch, redis.url)))
    async with zone.client() as client:
        source, target = [(await spawn(client, zone))["id"] for _ in range(2)]
        delegation = {"source_session_id": source, "target_session_id": target, "scopes": ["agent:lifecycle"]}
        edge = json_object(await client.post(f"{zone.path}/delegations", json={**delegation, "ttl_seconds": 60}))["id"]
        service = json_object(
            await client.post(
                f"{zone.path}/agent-services", json={"application_id": "app", "endpoint_url": "http://example.org/"}
            )
        )["id"]
        body = {"service_id": service, "idempotency_key": "k", "method": "m", "source_session_id": source}
        invocation = json_object(await client.post(f"{zone.path}/invocations", json=body))["id"]
        assert (await client.delete(f"{zone.path}/delegations/{edge}")).status_code == 200
        assert (await client.post(f"{zone.path}/invocations/{invocation}/cancel", json={})).status_code == 200

    def entry_fields(stream: str, *names: str) -> list[tuple[str, ...]]:
        return [tuple(entry.fields[name] for name in names) for entry in redis.entries(stream)]

    async def have_arrived() -> bool:
        return len(redis.entries(INVOCATIONS)) == 2

    await eventually(have_arrived, "both entries of the invocation arrived")
    assert entry_fields(INVOCATIONS, "event", "invocation_id", "service_id") == [
        ("invocation.created", invocation, service),
        ("invocation.canceled", invocation, service),
    ]
    edges = entry_fields(DELEGATIONS, "event", "edge_id", "source_session_id", "target_session_id", "epoch")
    assert edges == [("edge_create", edge, source, target, "1"), ("edge_revoke", edge, source, target, "2")]
    assert entry_fields(POLICIES, "zone_id") == [(zone.id,), (zone.id,)]


async def test_requests_succeed_during_a_redis_outage_and_every_entry_arrives_after_it(
    launch: Launch, servers: Servers, own_redis: RedisServer
) -> None:
    server = await servers.start(with_redis(launch, own_redis.url))
    zone = await create_zone(server)
    async with zone.client() as client:
        await run_scenario(client, zone)
        await assert_all_entries_arrived(own_redis.direct, zone)
        own_redis.stop()
        await asyncio.gather(*(run_scenario(client, zone) for _ in range(5)))
        assert (await client.get("/ready")).status_code == 200
        assert (await client.get(f"{zone.path}/quotas")).status_code == 200
        own_redis.start()
        await run_scenario(client, zone)
        own_redis.kill()
        await asyncio.gather(*(run_scenario(client, zone) for _ in range(5)))
        assert (await client.get("/ready")).status_code == 200
        own_redis.start()
    await assert_all_entries_arrived(own_redis.direct, zone)


async def test_server_starts_without_redis_and_delivers_once_it_is_available(
    launch: Launch, servers: Servers, own_redis: RedisServer
) -> None:
    own_redis.stop()
    zone = await create_zone(await servers.start(with_redis(launch, own_redis.url)))
    async with zone.client() as client:
        await run_scenario(client, zone)
        assert (await client.get("/ready")).status_code == 200
    own_redis.start()
    await assert_all_entries_arrived(own_redis.direct, zone)


async def test_killed_server_loses_no_entry_and_delivers_none_twice(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    launch_with_redis = with_redis(launch, redis.url)
    server = await servers.start(launch_with_redis)
    zone = await create_zone(server)
    for _ in range(3):
        async with zone.client() as client:
            await kill_during_work(server, [asyncio.create_task(run_scenario(client, zone)) for _ in range(6)])
        server = await servers.start(launch_with_redis)
        zone = FreshZone(server, zone.id)
    await assert_all_entries_arrived(redis, zone)


async def test_wiping_redis_under_load_never_exceeds_max_concurrent(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    zone = await create_zone(await servers.start(with_redis(launch, redis.url)), max_concurrent=8)
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        body = {"application_id": "app", "parent_id": root}
        requests = [asyncio.create_task(client.post(zone.sessions_path, json=body)) for _ in range(100)]
        for number, response in enumerate(asyncio.as_completed(requests)):
            assert (await response).status_code in (201, 429)
            if number % 20 == 0:
                redis.wipe()
        statuses = [task.result().status_code for task in requests]
    assert (statuses.count(201), statuses.count(429)) == (8, 92)
    await eventually(shows_taken(redis, zone, "8"), "eight slots were shown as taken")


def shows_taken(redis: DirectRedis, zone: FreshZone, taken: str) -> Callable[[], Awaitable[bool]]:
    async def is_shown() -> bool:
        return redis.client.get(slot_key(zone.id)) == taken

    return is_shown


async def test_wrong_slot_counters_are_repaired_and_never_used_for_admission(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    zone = await create_zone(await servers.start(with_redis(launch, redis.url)), max_concurrent=3)
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        redis.client.set(slot_key(zone.id), "3")
        for _ in range(3):
            await spawn(client, zone, parent_id=root)
        redis.client.set(slot_key(zone.id), "0")
        refused = await client.post(zone.sessions_path, json={"application_id": "app", "parent_id": root})
        assert_problem(refused, 429, "agent_concurrency_limit_exceeded")
        await eventually(shows_taken(redis, zone, "3"), "three slots were shown as taken")
        redis.client.set(slot_key(zone.id), "1")
        await eventually(shows_taken(redis, zone, "3"), "the wrong value was repaired")

        async def is_counted() -> bool:
            text = (await client.get("/metrics")).text
            if read_metric(text, 'quarterdeck_slots_repairs_total{name="redis"}') >= 1:
                return True
            # An update in flight may have repaired the value before the comparison. Write another wrong value.
            redis.client.set(slot_key(zone.id), "1")
            return False

        await eventually(is_counted, "the repair was counted")


# -- replicas


async def test_three_replicas_deliver_each_entry_once_despite_freezes_and_kills(
    postgres: PostgresDatabases, servers: Servers, redis: DirectRedis
) -> None:
    url = postgres.create_migrated()
    first = await servers.start(with_redis(launch_on(url, servers.directory), redis.url))
    zone = await create_zone(first)

    async def run_load(server: ServerProcess, count: int) -> None:
        async with server.client(zone.token()) as client:
            work = [run_scenario(client, zone), *(run_one_session(client, zone) for _ in range(count))]
            await asyncio.gather(*work, return_exceptions=True)

    _, second, third = await add_replicas(first, servers, 2)
    await run_load(first, 5)
    await assert_all_entries_arrived(redis, zone)  # so the first server holds the lease
    work = [asyncio.create_task(run_load(server, 10)) for server in (second, third)]
    first.freeze()
    await asyncio.gather(*work)
    await assert_all_entries_arrived(redis, FreshZone(second, zone.id), limit=40)
    first.thaw()
    await asyncio.gather(*(run_load(server, 5) for server in (first, second, third)))
    for server in (second, third):
        async with server.client(zone.token()) as client, asyncio.TaskGroup() as group:
            group.create_task(run_load(first, 10))
            await kill_during_work(server, [asyncio.create_task(run_scenario(client, zone)) for _ in range(5)])
    await assert_all_entries_arrived(redis, zone, limit=40)
    by_session: dict[str, list[int]] = defaultdict(list)
    for _, session, pos in read_entries(redis, zone)[AGENTS]:
        by_session[session].append(pos)
    assert all(positions == sorted(positions) for positions in by_session.values())
    servers.close()
    postgres.drop(url)


# -- sink status


async def test_entries_rejected_by_redis_are_listed_and_requeued(
    launch: Launch, servers: Servers, redis: DirectRedis
) -> None:
    server = await servers.start(with_redis(launch, redis.url, OUTBOX_MAX_ATTEMPTS="1"))
    zone = await create_zone(server)
    redis.client.set(AGENTS, "not a stream")
    async with zone.client() as client, server.client() as admin:
        await run_one_session(client, zone)

        async def sink() -> dict[str, Any]:
            return json_object(await admin.get("/sinks/redis-streams"))

        async def are_dead() -> bool:
            return int((await sink())["dead"]) == 6

        await eventually(are_dead, "six entries were dead")
        current = await sink()
        assert (current["is_configured"], current["waiting"], len(current["entries"])) == (True, 0, 6)
        assert "WRONGTYPE" in current["entries"][0]["error"]
        assert current["entries"][0]["fields"]["zone_id"] == zone.id
        keys, listed, webhooks = json_object(await admin.get("/sinks"))["items"]
        assert (keys["name"], keys["dead"]) == ("redis-keys", 0)
        assert (listed["name"], listed["dead"]) == ("redis-streams", 6)
        assert (webhooks["name"], webhooks["dead"]) == ("webhooks", 0)
        redis.client.delete(AGENTS)
        response = await admin.post("/sinks/redis-streams/requeue", json={"all": True})
        assert json_object(response) == {"requeued": 6}
        await assert_all_entries_arrived(redis, zone)
        text = (await admin.get("/metrics")).text
        for metric in ("lag_events", "lag_seconds", "stuck", "delivered_total", "dead_total", "refused_total"):
            assert f'quarterdeck_sink_{metric}{{name="redis-streams"}}' in text
        assert 'quarterdeck_sink_dead_total{name="redis-streams"} 6.0' in text


async def test_sink_reports_the_error_of_a_redis_outage(
    launch: Launch, servers: Servers, own_redis: RedisServer
) -> None:
    server = await servers.start(with_redis(launch, own_redis.url))
    zone = await create_zone(server)
    own_redis.stop()
    async with zone.client() as client, server.client() as admin:
        await run_scenario(client, zone)

        async def reports_error() -> bool:
            sink = json_object(await admin.get("/sinks/redis-streams"))
            return bool(sink["error"]) and sink["lag_events"] > 0

        await eventually(reports_error, "the sink reported the error")


# -- refused starts


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"REDIS_URL": "redis://127.0.0.1:1"}, "STREAMS_HMAC_KEY"),
        ({"REDIS_URL": "redis://127.0.0.1:1", "STREAMS_HMAC_KEY": "secret-value"}, "STREAMS_HMAC_KEY is '***'"),
        ({"REDIS_URL": "http://u:secret-value@h", "STREAMS_HMAC_KEY": KEY}, "REDIS_URL is 'http://u:***@h'"),
        ({"REDIS_URL": "redis://h:port", "STREAMS_HMAC_KEY": KEY}, "REDIS_URL is "),
        (
            {"REDIS_URL": "redis://h/0?nonsense=1", "STREAMS_HMAC_KEY": KEY},
            "a parameter that Redis connections do not have",
        ),
    ],
)
async def test_invalid_redis_settings_stop_the_start_with_an_error_message(
    servers: Servers, settings: dict[str, str], message: str
) -> None:
    refused = await servers.start_expecting_failure(Launch(servers.directory / "data").with_environment(**settings))
    assert refused.exit_code == 1
    assert message in refused.log_text
    assert "secret-value" not in refused.log_text
    assert "Traceback" not in refused.log_text
