"""The coordinator over HTTP: who may ask it, what it answers, and how it fares."""

from __future__ import annotations

import httpx

from quarterdeck.core.caller import COORDINATOR_ADMIN, LIFECYCLE
from tests.support.eventually import eventually
from tests.support.zone import FreshZone, assert_problem, create_zone, json_object, read_events

BASE = "/api/v1/coordinator"
TASKS = "/api/v1/agent-tasks"
TASK = {"title": "t", "taskType": "research", "retryBackoffSeconds": 0}


def ruler(zone: FreshZone) -> httpx.AsyncClient:
    return zone.client(zone.token(LIFECYCLE, COORDINATOR_ADMIN))


async def make(client: httpx.AsyncClient, **said: object) -> str:
    answer = await client.post(TASKS, json={**TASK, **said})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def status_of(client: httpx.AsyncClient, task_id: str) -> str:
    return str((await client.get(f"{TASKS}/{task_id}")).json()["status"])


async def test_status_is_that_of_the_seed_and_counts_the_callers_zone(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    async with ruler(zone) as client, ruler(other) as elsewhere:
        await client.put("/api/v1/agents/a", json={"maxConcurrentTasks": 5})
        for _ in range(3):
            made = await make(client)
        await make(client, dependsOn=[made])
        await make(client, runAt="2099-01-01T00:00:00Z")
        await make(elsewhere)
        await client.post("/api/v1/agents/a/claim", json={"max": 1})
        told = json_object(await client.get(f"{BASE}/status"))
        assert {*told} == {"active", "instanceId", "workspaces", "lastHeartbeat", "stats", "launchers"}
        assert (told["active"], told["workspaces"]) == (True, [zone.id])
        assert told["stats"] == {"pendingTasks": 2, "runningTasks": 1, "healthyAgents": 1, "staleAgents": 0}
        foreign = await client.get(f"{BASE}/status", params={"workspace": other.id})
        assert_problem(foreign, 404, "workspace_not_found")
    async with zone.server.client() as admin:
        everywhere = json_object(await admin.get(f"{BASE}/status"))
        assert {zone.id, other.id} <= {*everywhere["workspaces"]}
        assert everywhere["stats"]["pendingTasks"] >= 3
        one = json_object(await admin.get(f"{BASE}/status", params={"workspace": other.id}))
        assert one["stats"]["pendingTasks"] == 1
        assert_problem(await admin.get(f"{BASE}/status?workspace=nowhere"), 404, "workspace_not_found")


async def test_what_is_due_is_done_without_anybody_asking(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        await client.put("/api/v1/agents/a", json={})
        task_id = await make(client, retryBackoffSeconds=1)
        [task] = (await client.post("/api/v1/agents/a/claim", json={})).json()["tasks"]
        failed = {"error": "broken", "attemptToken": task["attemptToken"]}
        answer = await client.post(f"{TASKS}/{task_id}/fail", json=failed)
        assert answer.json()["status"] == "FAILED"
        again = await client.post("/api/v1/agents/a/claim", json={"waitMs": 15_000})
        [second] = again.json()["tasks"]
        assert (second["id"], second["attempt"], second["retryCount"]) == (task_id, 2, 1)


async def test_recover_looks_at_once_and_tells_what_it_found(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    async with ruler(zone) as client:
        found = await client.post(f"{BASE}/recover", json={})
        assert found.status_code == 200, found.text
        assert {*json_object(found)} == {
            "staleAgents", "timedOut", "overdue", "requeued", "spread", "inCycles"
        }  # fmt: skip
        named = await client.post(f"{BASE}/recover", json={"workspaceId": zone.id})
        assert named.status_code == 200
        assert_problem(await client.post(f"{BASE}/recover", json={"workspaceId": other.id}), 404, "workspace_not_found")


async def test_logs_show_what_went_wrong_newest_first_by_level(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        await client.put("/api/v1/agents/a", json={"maxConcurrentTasks": 5})
        ids = [await make(client, maxRetries=retries) for retries in (1, 0, 1)]
        for task in (await client.post("/api/v1/agents/a/claim", json={"max": 3})).json()["tasks"]:
            failed = {"error": "broken", "attemptToken": task["attemptToken"]}
            await client.post(f"{TASKS}/{task['id']}/fail", json=failed)
        told = json_object(await client.get(f"{BASE}/logs"))
        lines = [line for line in told["items"] if line["event"] == "task.failed"]
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


async def test_a_strategy_counts_for_what_waits_already_as_soon_as_it_is_ranked_anew(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        long = await make(client, priority=9, estimatedDurationMinutes=60)
        short = await make(client, priority=1, estimatedDurationMinutes=1)
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

        await eventually(is_ranked, "the shorter one goes first")
        assert await status_of(client, long) == "PENDING"
        assert_problem(await client.put(f"{BASE}/strategy", json={"strategy": "lifo"}), 400)
    changed = [event for event in await read_events(zone) if event["type"] == "coordinator.strategy"]
    assert [(event["from"], event["to"]) for event in changed] == [("priority", "sjf")]


async def test_only_owner_and_admin_use_the_coordinator(zone: FreshZone) -> None:
    async with zone.client() as member:
        for method, path in (
            ("GET", "/status"), ("POST", "/recover"), ("GET", "/logs"), ("GET", "/strategy"), ("PUT", "/strategy")
        ):  # fmt: skip
            body = {"strategy": "fair"} if method == "PUT" else {} if method == "POST" else None
            assert_problem(await member.request(method, BASE + path, json=body), 403, "forbidden_role")


async def test_anybody_may_ask_how_coordination_fares_as_in_the_seed(zone: FreshZone) -> None:
    async with httpx.AsyncClient(base_url=zone.server.url) as stranger:
        answer = await stranger.get("/health/coordinator")
        assert answer.status_code == 200, answer.text
        told = json_object(answer)
        assert (told["status"], told["database"]) == ("healthy", "connected")
        assert told["coordinator"]["active"] is True
        assert told["coordinator"]["cycleCount"] >= 1
        assert told["coordinator"]["lastCycle"] is not None
        assert told["gateway"] in ("not_configured", "reachable")


async def test_the_seeds_metrics_are_there(zone: FreshZone) -> None:
    async with zone.client() as client:
        text = (await client.get("/metrics")).text
    for name in (
        "coordinator_cycle_duration_seconds_count", "coordinator_stale_agents", "tasks_pending", "tasks_failed_total",
        "tasks_retry_exhausted_total", "agents_spawned_total",
    ):  # fmt: skip
        assert f"\n{name}" in text, name
