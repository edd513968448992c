"""Tasks over HTTP: life cycle, bulk requests, filters, secrets, and claims that wait."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.support.eventually import eventually
from tests.support.zone import FreshZone, assert_problem, create_zone, json_object

TASKS = "/api/v1/agent-tasks"
TASK = {"title": "Fix TypeScript strict errors", "taskType": "development"}


async def register(client: httpx.AsyncClient, name: str = "w", **fields: object) -> None:
    body = {"maxConcurrentTasks": 1_000, **fields}
    response = await client.put(f"/api/v1/agents/{name}", json=body)
    assert response.status_code in (200, 201), response.text


async def create_task(client: httpx.AsyncClient, **fields: object) -> dict[str, Any]:
    response = await client.post(TASKS, json={**TASK, **fields})
    assert response.status_code == 201, response.text
    return json_object(response)


async def claim(client: httpx.AsyncClient, name: str = "w", **fields: object) -> list[dict[str, Any]]:
    response = await client.post(f"/api/v1/agents/{name}/claim", json=fields)
    assert response.status_code == 200, response.text
    tasks: list[dict[str, Any]] = response.json()["tasks"]
    return tasks


async def test_task_is_created_claimed_reported_on_and_completed(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        created = await create_task(
            client,
            description="Run tsc --noEmit, fix all errors, commit changes",
            priority=8,
            inputContext={"repository": "u-connect", "branch": "main"},
            dependsOn=[],
            maxRetries=2,
            estimatedDurationMinutes=30,
        )
        assert (created["status"], created["workspaceId"], created["priority"]) == ("PENDING", zone.id, 8)
        [task] = await claim(client)
        assert (task["id"], task["status"], task["attempt"]) == (created["id"], "RUNNING", 1)
        assert task["inputContext"] == {"repository": "u-connect", "branch": "main"}
        assert task["estimatedCompletionAt"] is not None
        path, token = f"{TASKS}/{created['id']}", {"attemptToken": task["attemptToken"]}
        progress = await client.patch(
            f"{path}/progress",
            json={"progressPercent": 70, "currentStep": "Fixing", "checkpointData": {"filesProcessed": 15}, **token},
        )
        assert (progress.json()["progressPercent"], progress.json()["currentStep"]) == (70, "Fixing")
        result = {"filesModified": 20, "commitHash": "abc123"}
        completed = await client.post(
            f"{path}/complete", json={"outputResult": result, "summary": "All resolved.", **token}
        )
        assert (completed.status_code, completed.json()["status"], completed.json()["outputResult"]) == (
            200,
            "COMPLETED",
            result,
        )
        repeated = await client.post(f"{path}/complete", json={"outputResult": result, **token})
        assert (repeated.status_code, repeated.json()["summary"]) == (200, "All resolved.")


async def test_invalid_task_is_refused_with_the_field(zone: FreshZone) -> None:
    async with zone.client() as client:
        for fields, field in (
            ({"title": ""}, "title"),
            ({"title": "x" * 256}, "title"),
            ({"priority": 11}, "priority"),
            ({"maxRetries": 101}, "maxRetries"),
            ({"runAt": "tomorrow"}, "runAt"),
            ({"inputContext": []}, "inputContext"),
            ({"metadata": {"requiredCapabilities": "python"}}, "$.metadata.requiredCapabilities"),
        ):
            response = await client.post(TASKS, json={**TASK, **fields})
            assert_problem(response, 400, "invalid_body")
            assert response.json()["field"] == field
        assert_problem(await client.post(TASKS, json={"title": "no type"}), 400, "invalid_body")
        assert_problem(await client.post(TASKS, json={**TASK, "dependsOn": ["nothing"]}), 400, "unknown_dependency")
        large = {**TASK, "inputContext": {"a": "x" * (1 << 20)}}
        assert_problem(await client.post(TASKS, json=large), 413, "field_too_large")


async def test_bulk_create_returns_one_result_per_task_in_request_order(zone: FreshZone) -> None:
    async with zone.client() as client:
        tasks = [
            {**TASK, "id": "tail", "dependsOn": ["head"]},
            {**TASK, "id": "lost", "dependsOn": ["nothing"]},
            {**TASK, "id": "one", "dependsOn": ["other"]},
            {**TASK, "id": "other", "dependsOn": ["one"]},
            {**TASK, "id": "head"},
        ]
        response = await client.post(TASKS, json={"tasks": tasks}, headers={"Idempotency-Key": "many"})
        assert response.status_code == 201
        items = response.json()["items"]
        assert [item.get("id") or item["error"] for item in items] == [
            "tail",
            "unknown_dependency",
            "dependency_cycle",
            "dependency_cycle",
            "head",
        ]
        assert items[2]["cycle"] == ["one", "other", "one"]
        replayed = await client.post(TASKS, json={"tasks": tasks}, headers={"Idempotency-Key": "many"})
        assert [item.get("id") for item in replayed.json()["items"]] == ["tail", None, None, None, "head"]
        assert (await client.get(f"{TASKS}/head")).json()["blocks"] == ["tail"]


async def test_filters_apply_before_the_limit_and_on_every_page(zone: FreshZone) -> None:
    async with zone.client() as client:
        created = [
            await create_task(client, priority=n % 10 + 1, tags=["even"] if n % 2 == 0 else ["odd"]) for n in range(12)
        ]
        urgent = await client.get(f"{TASKS}?priority>=8&limit=2")
        assert [item["priority"] for item in urgent.json()["items"]] == [10, 9]
        rest = await client.get(f"{TASKS}?priority>=8&limit=2&cursor={urgent.json()['nextCursor']}")
        assert [item["priority"] for item in rest.json()["items"]] == [8]
        assert rest.json()["nextCursor"] is None
        even = await client.get(TASKS, params={"tags": "even", "limit": 50})
        assert [item["id"] for item in even.json()["items"]] == [task["id"] for task in reversed(created[::2])]
        both = await client.get(TASKS, params={"tags": "even,odd"})
        assert both.json()["items"] == []
        exact = await client.get(TASKS, params={"priority": 2, "status": "PENDING", "taskType": "development"})
        assert len(exact.json()["items"]) == 2
        since = await client.get(TASKS, params={"createdAfter": created[8]["createdAt"]})
        assert all(item["createdAt"] > created[8]["createdAt"] for item in since.json()["items"])
        assert_problem(await client.get(TASKS, params={"cursor": "x"}), 400, "invalid_cursor")


async def test_refused_item_of_a_bulk_complete_does_not_affect_the_others(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        for _ in range(3):
            await create_task(client)
        tasks = await claim(client, max=3)
        items = [{"id": task["id"], "attemptToken": task["attemptToken"], "outputResult": {}} for task in tasks]
        items[1] = {"id": tasks[1]["id"], "attemptToken": "stale"}
        done = await client.post(f"{TASKS}/complete", json={"items": [*items, {"id": "nothing", "attemptToken": "t"}]})
        outcomes = [item.get("status") or item["error"]["error"] for item in done.json()["items"]]
        assert outcomes == ["COMPLETED", "stale_attempt", "COMPLETED", "task_not_found"]


async def test_task_can_be_paused_resumed_canceled_and_retried(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        created = await create_task(client)
        [task] = await claim(client)
        path = f"{TASKS}/{created['id']}"
        paused = await client.patch(path, json={"status": "PAUSED", "priority": 10})
        assert (paused.json()["status"], paused.json()["priority"]) == ("PAUSED", 10)
        heartbeat = await client.post("/api/v1/agents/w/heartbeat", json={"taskIds": [created["id"]]})
        assert heartbeat.json()["pause"] == [created["id"]]
        stale = await client.post(f"{path}/complete", json={"attemptToken": task["attemptToken"]})
        assert_problem(stale, 409, "stale_attempt")
        assert (await client.patch(path, json={"status": "PENDING"})).json()["status"] == "PENDING"
        canceled = await client.post(f"{path}/cancel", json={"reason": "Requirements changed"})
        assert (canceled.json()["status"], canceled.json()["reason"]) == ("ABORTED", "Requirements changed")
        heartbeat = await client.post("/api/v1/agents/w/heartbeat", json={"taskIds": [created["id"]]})
        assert heartbeat.json()["cancel"] == [created["id"]]
        retried = await client.post(f"{path}/retry", json={})
        assert retried.json()["status"] == "PENDING"
        assert_problem(await client.post(f"{path}/retry", json={}), 409, "task_state_conflict")
        assert_problem(await client.patch(path, json={"title": "x"}), 400, "invalid_body")


async def test_secrets_are_masked_except_in_the_claim_response(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        context = {"password": "hunter2", "db": {"$secret": "canary"}, "max_tokens": "100"}
        created = await create_task(client, inputContext=context)
        masked = {"password": "***", "db": "***", "max_tokens": "100"}
        assert created["inputContext"] == masked
        [task] = await claim(client)
        assert task["inputContext"]["password"] == "hunter2"
        assert "canary" in str(task["inputContext"]["db"])
        assert (await client.get(f"{TASKS}/{created['id']}")).json()["inputContext"] == masked


async def test_claim_waits_until_a_task_is_created(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        waiting = asyncio.create_task(claim(client, waitMs=20_000))
        await wait_for_claims(zone, 1)
        created = await create_task(client)
        [task] = await waiting
        assert task["id"] == created["id"]


async def test_late_repeat_of_a_claim_whose_tasks_have_ended_does_not_wait(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        created = await create_task(client)
        [task] = await claim(client, claimId="c", waitMs=20_000)
        result = {"attemptToken": task["attemptToken"], "outputResult": {}}
        assert (await client.post(f"{TASKS}/{created['id']}/complete", json=result)).status_code == 200
        assert await asyncio.wait_for(claim(client, claimId="c", waitMs=60_000), 10) == []


async def test_waiting_claim_is_refused_when_its_agent_is_terminated(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        waiting = asyncio.create_task(client.post("/api/v1/agents/w/claim", json={"waitMs": 60_000}))
        await wait_for_claims(zone, 1)
        assert (await client.post("/api/v1/agents/w/terminate", json={})).status_code == 200
        assert_problem(await asyncio.wait_for(waiting, 10), 409, "agent_terminated")
        assert_problem(await client.post("/api/v1/agents/w/claim", json={}), 409, "agent_terminated")


async def test_new_task_is_not_leased_to_a_disconnected_claim(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        async with zone.client() as other:
            disconnected = asyncio.create_task(claim(other, waitMs=20_000))
            await wait_for_claims(zone, 1)
            disconnected.cancel()
            await asyncio.wait([disconnected])
        await wait_for_claims(zone, 0)
        created = await create_task(client)
        row = (await client.get(f"{TASKS}/{created['id']}")).json()
        assert (row["status"], row["attempt"]) == ("PENDING", 0)
        [task] = await claim(client)
        assert (task["id"], task["attempt"]) == (created["id"], 1)


async def wait_for_claims(zone: FreshZone, number: int) -> None:
    async def has_count() -> bool:
        async with zone.server.client() as admin:
            lines = (await admin.get("/metrics")).text.splitlines()
        [gauge] = [line for line in lines if line.startswith('quarterdeck_claims_waiting{name="tasks"}')]
        return float(gauge.split()[-1]) == number

    await eventually(has_count, f"{number} claims are waiting for tasks")


async def test_task_of_another_workspace_is_not_found(zone: FreshZone) -> None:
    async with zone.client() as client:
        created = await create_task(client)
    other_zone = await create_zone(zone.server)
    async with other_zone.client() as client:
        assert_problem(await client.get(f"{TASKS}/{created['id']}"), 404, "task_not_found")
        foreign_header = await client.get(f"{TASKS}/{created['id']}", headers={"X-Workspace-ID": zone.id})
        assert_problem(foreign_header, 404, "workspace_not_found")
        dependent = await client.post(TASKS, json={**TASK, "dependsOn": [created["id"]]})
        assert_problem(dependent, 400, "unknown_dependency")
