"""Tasks over HTTP: the wire of the seed, many at once, and what becomes of work whose claimer is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.support.eventually import eventually
from tests.support.zone import FreshZone, assert_problem, create_zone, json_object

TASKS = "/api/v1/agent-tasks"
TASK = {"title": "Fix TypeScript strict errors", "taskType": "development"}


async def register(client: httpx.AsyncClient, name: str = "w", **said: object) -> None:
    body = {"maxConcurrentTasks": 1_000, **said}
    answer = await client.put(f"/api/v1/agents/{name}", json=body)
    assert answer.status_code in (200, 201), answer.text


async def make(client: httpx.AsyncClient, **said: object) -> dict[str, Any]:
    answer = await client.post(TASKS, json={**TASK, **said})
    assert answer.status_code == 201, answer.text
    return json_object(answer)


async def claim(client: httpx.AsyncClient, name: str = "w", **said: object) -> list[dict[str, Any]]:
    answer = await client.post(f"/api/v1/agents/{name}/claim", json=said)
    assert answer.status_code == 200, answer.text
    tasks: list[dict[str, Any]] = answer.json()["tasks"]
    return tasks


async def test_a_task_of_the_seed_is_made_worked_on_and_done(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        made = await make(
            client,
            description="Run tsc --noEmit, fix all errors, commit changes",
            priority=8,
            inputContext={"repository": "u-connect", "branch": "main"},
            dependsOn=[],
            maxRetries=2,
            estimatedDurationMinutes=30,
        )
        assert (made["status"], made["workspaceId"], made["priority"]) == ("PENDING", zone.id, 8)
        [task] = await claim(client)
        assert (task["id"], task["status"], task["attempt"]) == (made["id"], "RUNNING", 1)
        assert task["inputContext"] == {"repository": "u-connect", "branch": "main"}
        assert task["estimatedCompletionAt"] is not None
        path, token = f"{TASKS}/{made['id']}", {"attemptToken": task["attemptToken"]}
        progress = await client.patch(
            f"{path}/progress",
            json={"progressPercent": 70, "currentStep": "Fixing", "checkpointData": {"filesProcessed": 15}, **token},
        )
        assert (progress.json()["progressPercent"], progress.json()["currentStep"]) == (70, "Fixing")
        result = {"filesModified": 20, "commitHash": "abc123"}
        done = await client.post(f"{path}/complete", json={"outputResult": result, "summary": "All resolved.", **token})
        assert (done.status_code, done.json()["status"], done.json()["outputResult"]) == (200, "COMPLETED", result)
        again = await client.post(f"{path}/complete", json={"outputResult": result, **token})
        assert (again.status_code, again.json()["summary"]) == (200, "All resolved.")


async def test_what_is_asked_for_is_checked_and_the_field_is_named(zone: FreshZone) -> None:
    async with zone.client() as client:
        for said, field in (
            ({"title": ""}, "title"),
            ({"title": "x" * 256}, "title"),
            ({"priority": 11}, "priority"),
            ({"maxRetries": 101}, "maxRetries"),
            ({"runAt": "tomorrow"}, "runAt"),
            ({"inputContext": []}, "inputContext"),
            ({"metadata": {"requiredCapabilities": "python"}}, "$.metadata.requiredCapabilities"),
        ):
            answer = await client.post(TASKS, json={**TASK, **said})
            assert_problem(answer, 400, "invalid_body")
            assert answer.json()["field"] == field
        assert_problem(await client.post(TASKS, json={"title": "no type"}), 400, "invalid_body")
        assert_problem(await client.post(TASKS, json={**TASK, "dependsOn": ["nothing"]}), 400, "unknown_dependency")
        large = {**TASK, "inputContext": {"a": "x" * (1 << 20)}}
        assert_problem(await client.post(TASKS, json=large), 413, "field_too_large")


async def test_many_are_made_at_once_each_with_its_own_outcome_in_the_order_of_the_request(zone: FreshZone) -> None:
    async with zone.client() as client:
        asked = [
            {**TASK, "id": "tail", "dependsOn": ["head"]},
            {**TASK, "id": "lost", "dependsOn": ["nothing"]},
            {**TASK, "id": "one", "dependsOn": ["other"]},
            {**TASK, "id": "other", "dependsOn": ["one"]},
            {**TASK, "id": "head"},
        ]
        answer = await client.post(TASKS, json={"tasks": asked}, headers={"Idempotency-Key": "many"})
        assert answer.status_code == 201
        items = answer.json()["items"]
        assert [item.get("id") or item["error"] for item in items] == [
            "tail",
            "unknown_dependency",
            "dependency_cycle",
            "dependency_cycle",
            "head",
        ]
        assert items[2]["cycle"] == ["one", "other", "one"]
        again = await client.post(TASKS, json={"tasks": asked}, headers={"Idempotency-Key": "many"})
        assert [item.get("id") for item in again.json()["items"]] == ["tail", None, None, None, "head"]
        assert (await client.get(f"{TASKS}/head")).json()["blocks"] == ["tail"]


async def test_filters_apply_before_the_limit_and_pages_go_on(zone: FreshZone) -> None:
    async with zone.client() as client:
        made = [await make(client, priority=n % 10 + 1, tags=["even"] if n % 2 == 0 else ["odd"]) for n in range(12)]
        urgent = await client.get(f"{TASKS}?priority>=8&limit=2")
        assert [item["priority"] for item in urgent.json()["items"]] == [10, 9]
        rest = await client.get(f"{TASKS}?priority>=8&limit=2&cursor={urgent.json()['nextCursor']}")
        assert [item["priority"] for item in rest.json()["items"]] == [8]
        assert rest.json()["nextCursor"] is None
        even = await client.get(TASKS, params={"tags": "even", "limit": 50})
        assert [item["id"] for item in even.json()["items"]] == [task["id"] for task in reversed(made[::2])]
        both = await client.get(TASKS, params={"tags": "even,odd"})
        assert both.json()["items"] == []
        exact = await client.get(TASKS, params={"priority": 2, "status": "PENDING", "taskType": "development"})
        assert len(exact.json()["items"]) == 2
        since = await client.get(TASKS, params={"createdAfter": made[8]["createdAt"]})
        assert all(item["createdAt"] > made[8]["createdAt"] for item in since.json()["items"])
        assert_problem(await client.get(TASKS, params={"cursor": "x"}), 400, "invalid_cursor")


async def test_many_are_completed_at_once_and_one_that_is_refused_costs_the_others_nothing(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        for _ in range(3):
            await make(client)
        tasks = await claim(client, max=3)
        items = [{"id": task["id"], "attemptToken": task["attemptToken"], "outputResult": {}} for task in tasks]
        items[1] = {"id": tasks[1]["id"], "attemptToken": "older"}
        done = await client.post(f"{TASKS}/complete", json={"items": [*items, {"id": "nothing", "attemptToken": "t"}]})
        outcomes = [item.get("status") or item["error"]["error"] for item in done.json()["items"]]
        assert outcomes == ["COMPLETED", "stale_attempt", "COMPLETED", "task_not_found"]


async def test_a_task_is_paused_resumed_canceled_and_retried_by_hand(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        made = await make(client)
        [task] = await claim(client)
        path = f"{TASKS}/{made['id']}"
        paused = await client.patch(path, json={"status": "PAUSED", "priority": 10})
        assert (paused.json()["status"], paused.json()["priority"]) == ("PAUSED", 10)
        beat = await client.post("/api/v1/agents/w/heartbeat", json={"taskIds": [made["id"]]})
        assert beat.json()["pause"] == [made["id"]]
        stale = await client.post(f"{path}/complete", json={"attemptToken": task["attemptToken"]})
        assert_problem(stale, 409, "stale_attempt")
        assert (await client.patch(path, json={"status": "PENDING"})).json()["status"] == "PENDING"
        canceled = await client.post(f"{path}/cancel", json={"reason": "Requirements changed"})
        assert (canceled.json()["status"], canceled.json()["reason"]) == ("ABORTED", "Requirements changed")
        beat = await client.post("/api/v1/agents/w/heartbeat", json={"taskIds": [made["id"]]})
        assert beat.json()["cancel"] == [made["id"]]
        retried = await client.post(f"{path}/retry", json={})
        assert retried.json()["status"] == "PENDING"
        assert_problem(await client.post(f"{path}/retry", json={}), 409, "task_state_conflict")
        assert_problem(await client.patch(path, json={"title": "x"}), 400, "invalid_body")


async def test_a_secret_is_shown_to_whoever_holds_the_task_and_to_nobody_else(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        context = {"password": "hunter2", "db": {"$secret": "canary"}, "max_tokens": "100"}
        made = await make(client, inputContext=context)
        masked = {"password": "***", "db": "***", "max_tokens": "100"}
        assert made["inputContext"] == masked
        [task] = await claim(client)
        assert task["inputContext"]["password"] == "hunter2"
        assert "canary" in str(task["inputContext"]["db"])
        assert (await client.get(f"{TASKS}/{made['id']}")).json()["inputContext"] == masked


async def test_a_claim_waits_until_there_is_work(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        waiting = asyncio.create_task(claim(client, waitMs=20_000))
        await claims_wait(zone, 1)
        made = await make(client)
        [task] = await waiting
        assert task["id"] == made["id"]


async def test_a_claim_that_waits_is_refused_like_a_new_one_as_soon_as_its_agent_is_terminated(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        waiting = asyncio.create_task(client.post("/api/v1/agents/w/claim", json={"waitMs": 60_000}))
        await claims_wait(zone, 1)
        assert (await client.post("/api/v1/agents/w/terminate", json={})).status_code == 200
        assert_problem(await asyncio.wait_for(waiting, 10), 409, "agent_terminated")
        assert_problem(await client.post("/api/v1/agents/w/claim", json={}), 409, "agent_terminated")


async def test_what_is_made_goes_to_nobody_who_has_hung_up(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        async with zone.client() as other:
            gone = asyncio.create_task(claim(other, waitMs=20_000))
            await claims_wait(zone, 1)
            gone.cancel()
            await asyncio.wait([gone])
        await claims_wait(zone, 0)
        made = await make(client)
        row = (await client.get(f"{TASKS}/{made['id']}")).json()
        assert (row["status"], row["attempt"]) == ("PENDING", 0)
        [task] = await claim(client)
        assert (task["id"], task["attempt"]) == (made["id"], 1)


async def claims_wait(zone: FreshZone, number: int) -> None:
    async def so_many() -> bool:
        async with zone.server.client() as admin:
            lines = (await admin.get("/metrics")).text.splitlines()
        [found] = [line for line in lines if line.startswith('quarterdeck_claims_waiting{name="tasks"}')]
        return float(found.split()[-1]) == number

    await eventually(so_many, f"{number} claims wait for tasks")


async def test_a_foreign_workspaces_task_is_not_there(zone: FreshZone) -> None:
    async with zone.client() as client:
        made = await make(client)
    stranger = await create_zone(zone.server)
    async with stranger.client() as client:
        assert_problem(await client.get(f"{TASKS}/{made['id']}"), 404, "task_not_found")
        elsewhere = await client.get(f"{TASKS}/{made['id']}", headers={"X-Workspace-ID": zone.id})
        assert_problem(elsewhere, 404, "workspace_not_found")
        dependent = await client.post(TASKS, json={**TASK, "dependsOn": [made["id"]]})
        assert_problem(dependent, 400, "unknown_dependency")
