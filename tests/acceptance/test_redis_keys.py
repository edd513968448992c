"""What Redis shows of tasks and agents beside a real server: written after each commit, late when Redis is away, whole
again when it is back or was wiped, and never believed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib import resources
from typing import Any

import httpx
import pytest

from quarterdeck.bus.redis import key_layout
from tests.support import prometheus_rules
from tests.support.databases import SqliteDatabases
from tests.support.eventually import eventually
from tests.support.key_mirror import read_keys
from tests.support.redis import DirectRedis, RedisServer
from tests.support.server import ServerProcess, Servers, launch_on
from tests.support.zone import assert_problem

ZONE = key_layout.DEFAULT_ZONE
TASKS, AGENTS = "/api/v1/agent-tasks", "/api/v1/agents"
PASSING = ("agent:heartbeat:", "coordinator:lock:", "session:context:")
"""Keys that end by themselves."""
SEEDS = (
    "coordinator_cycle_duration_seconds",
    "coordinator_stale_agents",
    "tasks_pending",
    "tasks_failed_total",
    "tasks_retry_exhausted_total",
    "agents_spawned_total",
    "valkey_connection_errors_total",
)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def redis_backed_server(
    redis_server: RedisServer, sqlite_databases: SqliteDatabases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("redis-keys")
    started = Servers(directory)
    told = launch_on(sqlite_databases.create_migrated(directory), directory).with_environment(
        REDIS_URL=redis_server.url,
        STREAMS_HMAC_KEY="a key that is long enough",
        OUTBOX_INTERVAL_MS="100",
        QD_KEYS_RECONCILE_INTERVAL_MS="200",
        QD_COORDINATOR_INTERVAL_MS="600000",
    )
    try:
        yield asyncio.run(started.start(told))
    finally:
        started.close()


@pytest.fixture
async def client(redis_backed_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with redis_backed_server.client() as asking:
        yield asking


@pytest.fixture
def redis(redis_server: RedisServer) -> DirectRedis:
    return redis_server.direct


async def done(answer: Awaitable[httpx.Response]) -> dict[str, Any]:
    got = await answer
    assert got.status_code in (200, 201), got.text
    found: dict[str, Any] = got.json()
    return found


async def makes(client: httpx.AsyncClient, **said: object) -> str:
    asked = {"title": "t", "taskType": "development", "retryBackoffSeconds": 3_600, **said}
    return str((await done(client.post(TASKS, json=asked)))["id"])


async def claims(client: httpx.AsyncClient, agent: str, most: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await done(client.post(f"{AGENTS}/{agent}/claim", json={"max": most})))["tasks"]
    return found


def becomes(look: Callable[[], object], wanted: object) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return look() == wanted

    return ask


async def test_every_step_of_a_task_is_seen_under_the_seeds_keys(client: httpx.AsyncClient, redis: DirectRedis) -> None:
    seen = redis.client
    await done(client.put(f"{AGENTS}/one", json={"maxConcurrentTasks": 5}))
    task = await makes(client, priority=8)
    pending, active = f"tasks:pending:{ZONE}", f"tasks:active:{ZONE}"
    await eventually(becomes(lambda: seen.zrange(pending, 0, -1), [task]), "the task was pending")
    assert 2 * 10**13 < float(str(seen.zscore(pending, task))) < 3 * 10**13
    [lease] = await claims(client, "one", 1)
    await eventually(becomes(lambda: seen.hkeys("agent:tasks:one"), [task]), "the task was held")
    assert seen.smembers(active) == {f"{task}:"}
    assert not seen.exists(pending)
    await done(client.post(f"{AGENTS}/one/heartbeat", json={"currentTaskId": task}))
    await eventually(becomes(lambda: seen.exists("agent:heartbeat:one"), 1), "the heartbeat was seen")
    beat = json.loads(str(seen.get("agent:heartbeat:one")))
    assert (beat["status"], beat["task_id"]) == ("running", task)
    report = {"attemptToken": lease["attemptToken"], "outputResult": {}}
    await done(client.post(f"{TASKS}/{task}/complete", json=report))
    await eventually(becomes(lambda: seen.exists("agent:tasks:one", active), 0), "nothing was held")
    await eventually(becomes(lambda: seen.hget("agent:status:one", "status"), "idle"), "the agent was idle")
    await done(client.post(f"{AGENTS}/one/terminate", json={}))
    await eventually(becomes(lambda: [*seen.scan_iter("agent:*:one")], []), "nothing of the agent was left")


async def test_who_coordinates_is_shown_and_a_command_only_makes_it_look_again(
    client: httpx.AsyncClient, redis: DirectRedis
) -> None:
    lock = f"coordinator:lock:{ZONE}"
    await eventually(becomes(lambda: redis.client.exists(lock), 1), "the lock was shown")
    assert 0 < redis.client.ttl(lock) <= 30
    before = redis.client.get(lock)

    async def cycles() -> int:
        return int((await client.get("/health/coordinator")).json()["coordinator"]["cycleCount"])

    known = await cycles()
    redis.client.publish(f"coordinator:commands:{ZONE}", '{"command":"reassign_task","task_id":"any"}')

    async def has_looked() -> bool:
        return await cycles() > known

    await eventually(has_looked, "the coordinator looked again")
    assert redis.client.get(lock) == before
    redis.client.set(lock, "a liar")
    await eventually(becomes(lambda: redis.client.get(lock), before), "who coordinates was shown again")


async def work_of_every_kind(client: httpx.AsyncClient) -> None:
    await done(client.put(f"{AGENTS}/busy", json={"maxConcurrentTasks": 5}))
    for _ in range(4):
        await makes(client)
    first, *_ = await claims(client, "busy", 2)
    await done(client.post(f"{TASKS}/{first['id']}/fail", json={"attemptToken": first["attemptToken"], "error": "e"}))


def standing(redis: DirectRedis) -> dict[str, object]:
    return read_keys(redis, *PASSING)


async def test_wiped_keys_come_back_by_themselves_and_by_hand(client: httpx.AsyncClient, redis: DirectRedis) -> None:
    await work_of_every_kind(client)
    recovery = f"coordinator:recovery_queue:{ZONE}"
    await eventually(becomes(lambda: redis.client.llen(recovery), 1), "all of it was told")
    before = standing(redis)
    assert len(before) == 5
    redis.wipe()
    await eventually(becomes(lambda: standing(redis), before), "everything was there again")
    redis.client.zadd(f"tasks:pending:{ZONE}", {"ghost": 1})
    rebuilt = await done(client.post("/redis/rebuild"))
    assert rebuilt["state"] == "whole"
    assert standing(redis) == before
    assert (await done(client.get("/redis")))["state"] == "whole"


async def test_with_redis_away_every_call_answers_and_the_keys_are_right_when_it_returns(
    client: httpx.AsyncClient, redis_server: RedisServer
) -> None:
    recovery = f"coordinator:recovery_queue:{ZONE}"
    waiting = redis_server.direct.client.llen(recovery)
    redis_server.stop()
    await work_of_every_kind(client)
    assert (await client.get("/ready")).status_code == 200

    async def is_degraded() -> bool:
        return bool((await client.get("/health/coordinator")).json()["valkey"] == "disconnected")

    await eventually(is_degraded, "the coordinator's health told of it")
    assert_problem(await client.post("/redis/rebuild"), 503, "redis_away")
    text = (await client.get("/metrics")).text
    [errors] = [line for line in text.splitlines() if line.startswith("valkey_connection_errors_total{")]
    assert float(errors.split()[-1]) > 0
    redis_server.start()
    await eventually(becomes(lambda: redis_server.direct.client.llen(recovery), waiting + 1), "the keys were right")
    listed = (await done(client.get("/sinks")))["items"]
    assert [each["name"] for each in listed] == ["redis-keys", "redis-streams", "webhooks"]


async def test_every_figure_that_the_alert_rules_name_is_exported_and_every_figure_of_the_seed_has_a_rule(
    client: httpx.AsyncClient,
) -> None:
    text = resources.files("quarterdeck").joinpath("ops", "alerts.yml").read_text(encoding="utf-8")
    told = prometheus_rules.parse_rules(text)
    assert isinstance(told, dict)
    assert isinstance(told["groups"], list)
    [group] = told["groups"]
    assert isinstance(group, dict)
    expressions = {str(rule["alert"]): str(rule["expr"]) for rule in group["rules"] if isinstance(rule, dict)}
    assert len(expressions) == len(group["rules"]) >= len(SEEDS)
    exported = {
        line.partition("{")[0].partition(" ")[0]
        for line in (await client.get("/metrics")).text.splitlines()
        if not line.startswith("#")
    }
    known = {"sum", "max", "min", "increase", "rate"}
    named = {name for expression in expressions.values() for name in prometheus_rules.metric_names(expression)} - known
    assert named <= exported
    for figure in SEEDS:
        assert any(name.startswith(figure) for name in named), f"nobody is told about {figure}"


async def test_a_server_without_redis_says_that_it_has_none(sqlite_server: ServerProcess) -> None:
    async with sqlite_server.client() as client:
        assert (await done(client.get("/redis")))["state"] == "not_configured"
        assert_problem(await client.post("/redis/rebuild"), 409, "redis_not_configured")
        assert "valkey_connection_errors_total" in (await client.get("/metrics")).text
