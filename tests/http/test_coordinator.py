"""The coordinator over HTTP: status, recovery, logs, strategy, permissions and health."""

from __future__ import annotations

import httpx

from quarterdeck.core.caller import COORDINATOR_ADMIN, LIFECYCLE
from tests.support.eventually import eventually
from tests.support.zone import FreshZone, assert_problem, create_zone, json_object, read_events

BASE = "/api/v1/coordinator"
TASKS = "/api/v1/agent-tasks"
TASK = {"title": "t", "taskType": "research", "retryBackoffSeconds": 0}


def admin_client(zone: FreshZone) -> httpx.AsyncClient:
    return zone.client(zone.token(LIFECYCLE, COORDINATOR_ADMIN))


async def create_task(client: httpx.AsyncClient, **fields: object) -> str:
    response = await client.post(TASKS, json={**TASK, **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def task_status(client: httpx.AsyncClient, task_id: str) -> str:
    return str((await client.get(f"{TASKS}/{task_id}")).json()["status"])


async def test_status_counts_the_zones_that_the_caller_may_see(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    async with admin_client(zone) as client, admin_client(other) as other_client:
        await client.put("/api/v1/agents/a", json={"maxConcurrentTasks": 5})
        for _ in range(3):
            task_id = await create_task(client)
        await create_task(client, dependsOn=[task_id])
        await create_task(client, runAt="2099-01-01T00:00:00Z")
        await create_task(other_client)
        await client.post("/api/v1/agents/a/claim", json={"max": 1})
        status = json_object(await client.get(f"{BASE}/status"))
        assert {*status} == {"active", "instanceId", "workspaces", "lastHeartbeat", "stats", "launchers"}
        assert (status["active"], status["workspaces"]) == (True, [zone.id])
        assert status["stats"] == {"pendingTasks": 2, "runningTasks": 1, "healthyAgents": 1, "staleAgents": 0}
        foreign = await client.get(f"{BASE}/status", params={"workspace": other.id})
        assert_problem(foreign, 404, "workspace_not_found")
    async with zone.server.client() as admin:
        all_zones = json_object(await admin.get(f"{BASE}/status"))
        assert {zone.id, other.id} <= {*all_zones["workspaces"]}
        assert all_zones["stats"]["pendingTasks"] >= 3
        one_zone = json_object(await admin.get(f"{BASE}/status", params={"workspace": other.id}))
        assert one_zone["stats"]["pendingTasks"] == 1
        assert_problem(await admin.get(f"{BASE}/status?workspace=no-such-zone"), 404, "workspace_not_found")


async def test_failed_task_is_requeued_after_its_backoff(zone: FreshZone) -> None:
    async with admin_client(zone) as client:
        await client.put("/api/v1/agents/a", json={})
        task_id = await create_task(client, retryBackoffSeconds=1)
        [task] = (await client.post("/api/v1/agents/a/claim", json={})).json()["tasks"]
        failed = {"error": "broken", "attemptToken": task["attemptToken"]}
        response = await client.post(f"{TASKS}/{task_id}/fail", json=failed)
        assert response.json()["status"] == "FAILED"
        again = await client.post("/api/v1/agents/a/claim", json={"waitMs": 15_000})
        [second] = again.json()["tasks"]
        assert (second["id"], second["attempt"], second["retryCount"]) == (task_id, 2, 1)


async def test_recover_runs_at_once_and_returns_its_counts(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    async with admin_client(zone) as client:
        recovered = await client.post(f"{BASE}/recover", json={})
        assert recovered.status_code == 200, recovered.text
        assert {*json_object(recovered)} == {
            "staleAgents", "timedOut", "overdue", "requeued", "spread", "inCycles"
        }  # fmt: skip
        named = await client.post(f"{BASE}/recover", json={"workspaceId": zone.id})
        assert named.status_code == 200
        assert_problem(await client.post(f"{BASE}/recover", json={"workspaceId": other.id}), 404, "workspace_not_found")


async def test_logs_list_failures_newest_first_and_by_level(zone: FreshZone) -> None:
    async with admin_client(zone) as client:
        await client.put("/api/v1/agents/a", json={"maxConcurrentTasks": 5})
        ids = [await create_task(client, maxRetries=retries) for retries in (1, 0, 1)]
        for task in (await client.post("/api/v1/agents/a/claim", json={"max": 3})).json()["tasks"]:
            failed = {"error": "broken", "attemptToken": task["attemptToken"]}
            await client.post(f"{TASKS}/{task['id']}/fail", json=failed)
        log = json_object(await client.get(f"{BASE}/logs"))
        lines = [line for line in log["items"] if line["event"] == "task.failed"]
        assert [line["taskId"] for line in lines] == ids[::-1]
        assert [line["level"] for line in lines] == ["ERROR", "CRITICAL", "ERROR"]
        critical = json_object(await client.get(f"{BASE}/logs", params={"level": "CRITICAL"}))["items"]
        assert [line["taskId"] for line in critical] == [ids[1]]
        page = json_object(await client.get(f"{BASE}/logs", params={"level": "ERROR", "limit": 1}))
        seen = [line["taskId"] for line in page["items"]]
        while page["nextCursor"]:
            query = {"level": "ERROR", "limit": 1, "cursor": page["nextCursor"]}
            page = json_object(await client.get(f"{BASE}/logs", params=query))
            seen += [line["taskId"] for line in page["items"]]
        assert seen == [ids[2], ids[0]]
        assert_problem(await client.get(f"{BASE}/logs?cursor=x"), 400, "invalid_cursor")


async def test_changed_strategy_reranks_pending_tasks(zone: FreshZone) -> None:
    async with admin_client(zone) as client:
        long = await create_task(client, priority=9, estimatedDurationMinutes=60)
        short = await create_task(client, priority=1, estimatedDurationMinutes=1)
        assert json_object(await client.get(f"{BASE}/strategy")) == {"strategy": "priority"}
        put = await client.put(f"{BASE}/strategy", json={"strategy": "sjf"})
        assert json_object(put) == {"strategy": "sjf"}
        assert json_object(await client.get(f"{BASE}/strategy")) == {"strategy": "sjf"}
        await client.put("/api/v1/agents/a", json={"maxConcurrentTasks": 1})

        async def is_ranked() -> bool:
            [task] = (await client.post("/api/v1/agents/a/claim", json={})).json()["tasks"]
            token = {"attemptToken": task["attemptToken"]}
            await client.post(f"{TASKS}/{task['id']}/release", json=token)
            return bool(task["id"] == short)

        await eventually(is_ranked, "the shorter task is claimed first")
        assert await task_status(client, long) == "PENDING"
        assert_problem(await client.put(f"{BASE}/strategy", json={"strategy": "lifo"}), 400)
    changed = [event for event in await read_events(zone) if event["type"] == "coordinator.strategy"]
    assert [(event["from"], event["to"]) for event in changed] == [("priority", "sjf")]


async def test_coordinator_routes_require_owner_or_admin(zone: FreshZone) -> None:
    async with zone.client() as member:
        for method, path in (
            ("GET", "/status"), ("POST", "/recover"), ("GET", "/logs"), ("GET", "/strategy"), ("PUT", "/strategy")
        ):  # fmt: skip
            body = {"strategy": "fair"} if method == "PUT" else {} if method == "POST" else None
            assert_problem(await member.request(method, BASE + path, json=body), 403, "forbidden_role")


async def test_coordinator_health_needs_no_credential(zone: FreshZone) -> None:
    async with httpx.AsyncClient(base_url=zone.server.url) as anonymous:
        response = await anonymous.get("/health/coordinator")
        assert response.status_code == 200, response.text
        health = json_object(response)
        assert (health["status"], health["database"]) == ("healthy", "connected")
        assert health["coordinator"]["active"] is True
        assert health["coordinator"]["cycleCount"] >= 1
        assert health["coordinator"]["lastCycle"] is not None
        assert health["gateway"] in ("not_configured", "reachable")


async def test_coordinator_metrics_are_exported(zone: FreshZone) -> None:
    async with zone.client() as client:
        text = (await client.get("/metrics")).text
    for name in (
        "coordinator_cycle_duration_seconds_count", "coordinator_stale_agents", "tasks_pending", "tasks_failed_total",
        "tasks_retry_exhausted_total", "agents_spawned_total",
    ):  # fmt: skip
        assert f"\n{name}" in text, name
