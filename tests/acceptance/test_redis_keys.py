"""Redis keys of tasks and agents: written after each commit, restored after an outage or a wipe, never trusted."""

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
from tests.support.redis import DirectRedis, RedisServer, run_redis
from tests.support.server import ServerProcess, Servers, launch_on
from tests.support.zone import assert_problem

ZONE = key_layout.DEFAULT_ZONE
TASKS, AGENTS = "/api/v1/agent-tasks", "/api/v1/agents"
EXPIRING = ("agent:heartbeat:", "coordinator:lock:", "session:context:")
"""Prefixes of keys that expire."""
ALERTED_METRICS = (
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
    with run_redis() as server:
        yield server


@pytest.fixture(scope="module")
def redis_backed_server(
    redis_server: RedisServer, sqlite_databases: SqliteDatabases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("redis-keys")
    servers = Servers(directory)
    launch = launch_on(sqlite_databases.create_migrated(directory), directory).with_environment(
        REDIS_URL=redis_server.url,
        STREAMS_HMAC_KEY="a key that is long enough",
        OUTBOX_INTERVAL_MS="100",
        QD_KEYS_RECONCILE_INTERVAL_MS="200",
        QD_COORDINATOR_INTERVAL_MS="600000",
    )
    try:
        yield asyncio.run(servers.start(launch))
    finally:
        servers.close()


@pytest.fixture
async def client(redis_backed_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with redis_backed_server.client() as client:
        yield client


@pytest.fixture
def redis(redis_server: RedisServer) -> DirectRedis:
    return redis_server.direct


async def fetch(request: Awaitable[httpx.Response]) -> dict[str, Any]:
    response = await request
    assert response.status_code in (200, 201), response.text
    content: dict[str, Any] = response.json()
    return content


async def create_task(client: httpx.AsyncClient, **fields: object) -> str:
    body = {"title": "t", "taskType": "development", "retryBackoffSeconds": 3_600, **fields}
    return str((await fetch(client.post(TASKS, json=body)))["id"])


async def claim(client: httpx.AsyncClient, agent: str, max_tasks: int) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = (await fetch(client.post(f"{AGENTS}/{agent}/claim", json={"max": max_tasks})))[
        "tasks"
    ]
    return tasks


def equals(read: Callable[[], object], expected: object) -> Callable[[], Awaitable[bool]]:
    async def is_equal() -> bool:
        return read() == expected

    return is_equal


async def test_redis_keys_follow_every_step_of_a_task(client: httpx.AsyncClient, redis: DirectRedis) -> None:
    keys = redis.client
    await fetch(client.put(f"{AGENTS}/one", json={"maxConcurrentTasks": 5}))
    task = await create_task(client, priority=8)
    pending, active = f"tasks:pending:{ZONE}", f"tasks:active:{ZONE}"
    await eventually(equals(lambda: keys.zrange(pending, 0, -1), [task]), "the task was pending")
    assert 2 * 10**13 < float(str(keys.zscore(pending, task))) < 3 * 10**13
    [lease] = await claim(client, "one", 1)
    await eventually(equals(lambda: keys.hkeys("agent:tasks:one"), [task]), "the task was held")
    assert keys.smembers(active) == {f"{task}:"}
    assert not keys.exists(pending)
    await fetch(client.post(f"{AGENTS}/one/heartbeat", json={"currentTaskId": task}))
    await eventually(equals(lambda: keys.exists("agent:heartbeat:one"), 1), "the heartbeat was written")
    beat = json.loads(str(keys.get("agent:heartbeat:one")))
    assert (beat["status"], beat["task_id"]) == ("running", task)
    report = {"attemptToken": lease["attemptToken"], "outputResult": {}}
    await fetch(client.post(f"{TASKS}/{task}/complete", json=report))
    await eventually(equals(lambda: keys.exists("agent:tasks:one", active), 0), "nothing was held")
    await eventually(equals(lambda: keys.hget("agent:status:one", "status"), "idle"), "the agent was idle")
    await fetch(client.post(f"{AGENTS}/one/terminate", json={}))
    await eventually(equals(lambda: [*keys.scan_iter("agent:*:one")], []), "every key of the agent was deleted")


async def test_coordinator_lock_is_mirrored_and_a_command_only_triggers_a_cycle(
    client: httpx.AsyncClient, redis: DirectRedis
) -> None:
    lock = f"coordinator:lock:{ZONE}"
    await eventually(equals(lambda: redis.client.exists(lock), 1), "the lock was mirrored")
    assert 0 < redis.client.ttl(lock) <= 30
    before = redis.client.get(lock)

    async def cycle_count() -> int:
        return int((await client.get("/health/coordinator")).json()["coordinator"]["cycleCount"])

    count_before = await cycle_count()
    redis.client.publish(f"coordinator:commands:{ZONE}", '{"command":"reassign_task","task_id":"any"}')

    async def has_run() -> bool:
        return await cycle_count() > count_before

    await eventually(has_run, "the coordinator ran another cycle")
    assert redis.client.get(lock) == before
    redis.client.set(lock, "other-holder")
    await eventually(equals(lambda: redis.client.get(lock), before), "the lock was mirrored again")


async def run_tasks(client: httpx.AsyncClient) -> None:
    await fetch(client.put(f"{AGENTS}/busy", json={"maxConcurrentTasks": 5}))
    for _ in range(4):
        await create_task(client)
    first, *_ = await claim(client, "busy", 2)
    await fetch(client.post(f"{TASKS}/{first['id']}/fail", json={"attemptToken": first["attemptToken"], "error": "e"}))


def lasting_keys(redis: DirectRedis) -> dict[str, object]:
    return read_keys(redis, *EXPIRING)


async def test_wiped_keys_are_restored_by_the_server_and_by_a_rebuild(
    client: httpx.AsyncClient, redis: DirectRedis
) -> None:
    await run_tasks(client)
    recovery = f"coordinator:recovery_queue:{ZONE}"
    await eventually(equals(lambda: redis.client.llen(recovery), 1), "all keys were written")
    before = lasting_keys(redis)
    assert len(before) == 5
    redis.wipe()
    await eventually(equals(lambda: lasting_keys(redis), before), "all keys were restored")
    redis.client.zadd(f"tasks:pending:{ZONE}", {"unknown-task": 1})
    rebuilt = await fetch(client.post("/redis/rebuild"))
    assert rebuilt["state"] == "whole"
    assert lasting_keys(redis) == before
    assert (await fetch(client.get("/redis")))["state"] == "whole"


async def test_requests_succeed_during_a_redis_outage_and_keys_are_correct_after_it(
    client: httpx.AsyncClient, redis_server: RedisServer
) -> None:
    recovery = f"coordinator:recovery_queue:{ZONE}"
    waiting = redis_server.direct.client.llen(recovery)
    redis_server.stop()
    await run_tasks(client)
    assert (await client.get("/ready")).status_code == 200

    async def is_degraded() -> bool:
        return bool((await client.get("/health/coordinator")).json()["valkey"] == "disconnected")

    await eventually(is_degraded, "the coordinator's health reported the outage")
    assert_problem(await client.post("/redis/rebuild"), 503, "redis_away")
    text = (await client.get("/metrics")).text
    [errors] = [line for line in text.splitlines() if line.startswith("valkey_connection_errors_total{")]
    assert float(errors.split()[-1]) > 0
    redis_server.start()
    await eventually(equals(lambda: redis_server.direct.client.llen(recovery), waiting + 1), "the keys were correct")
    sinks = (await fetch(client.get("/sinks")))["items"]
    assert [sink["name"] for sink in sinks] == ["redis-keys", "redis-streams", "webhooks"]


async def test_alert_rules_use_exported_metrics_and_cover_every_required_metric(client: httpx.AsyncClient) -> None:
    text = resources.files("quarterdeck").joinpath("ops", "alerts.yml").read_text(encoding="utf-8")
    rules = prometheus_rules.parse_rules(text)
    assert isinstance(rules, dict)
    assert isinstance(rules["groups"], list)
    [group] = rules["groups"]
    assert isinstance(group, dict)
    expressions = {str(rule["alert"]): str(rule["expr"]) for rule in group["rules"] if isinstance(rule, dict)}
    assert len(expressions) == len(group["rules"]) >= len(ALERTED_METRICS)
    exported = {
        line.partition("{")[0].partition(" ")[0]
        for line in (await client.get("/metrics")).text.splitlines()
        if not line.startswith("#")
    }
    functions = {"sum", "max", "min", "increase", "rate"}
    used = {
        name for expression in expressions.values() for name in prometheus_rules.metric_names(expression)
    } - functions
    assert used <= exported
    for metric in ALERTED_METRICS:
        assert any(name.startswith(metric) for name in used), f"no alert rule uses {metric}"


async def test_server_without_redis_reports_not_configured(sqlite_server: ServerProcess) -> None:
    async with sqlite_server.client() as client:
        assert (await fetch(client.get("/redis")))["state"] == "not_configured"
        assert_problem(await client.post("/redis/rebuild"), 409, "redis_not_configured")
        assert "valkey_connection_errors_total" in (await client.get("/metrics")).text
