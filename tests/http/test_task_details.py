"""Task logs, explanations, trees, costs and budgets over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.support.zone import FreshZone, assert_problem, create_zone, json_object, read_events

TASKS = "/api/v1/agent-tasks"
BUDGETS = "/api/v1/budgets"
COSTS = "/api/v1/costs"


def admin_client(zone: FreshZone) -> httpx.AsyncClient:
    return zone.client(zone.token(role="ADMIN"))


async def create_task(client: httpx.AsyncClient, **fields: object) -> dict[str, Any]:
    response = await client.post(TASKS, json={"title": "a task", "taskType": "development", **fields})
    assert response.status_code == 201, response.text
    return json_object(response)


async def claim(client: httpx.AsyncClient, agent: str = "worker", wait_ms: int = 0) -> list[dict[str, Any]]:
    response = await client.post(f"/api/v1/agents/{agent}/claim", json={"max": 1, "waitMs": wait_ms})
    assert response.status_code == 200, response.text
    tasks = response.json()["tasks"]
    assert isinstance(tasks, list)
    return tasks


async def claim_new_task(client: httpx.AsyncClient) -> dict[str, Any]:
    """A new task claimed by the agent `worker`, with its attempt token."""
    response = await client.put("/api/v1/agents/worker", json={"maxConcurrentTasks": 100})
    assert response.status_code in (200, 201), response.text
    await create_task(client)
    [leased] = await claim(client)
    return leased


async def test_task_log_has_agent_lines_and_status_changes_in_pages(zone: FreshZone) -> None:
    async with admin_client(zone) as client:
        leased = await claim_new_task(client)
        logs, token = f"{TASKS}/{leased['id']}/logs", leased["attemptToken"]
        line = {"message": "half way", "level": "DEBUG", "event": "note", "details": {"password": "canary"}}
        posted = await client.post(logs, json={**line, "attemptToken": token})
        assert posted.status_code == 201, posted.text
        bulk = await client.post(logs, json={"lines": [{"message": "a"}, {"message": "b"}], "attemptToken": token})
        assert len(bulk.json()["ids"]) == 2
        failed = {"error": "broken", "stackTrace": "line 7", "attemptToken": token}
        assert (await client.post(f"{TASKS}/{leased['id']}/fail", json=failed)).status_code == 200
        items = (await client.get(logs)).json()["items"]
        assert [item["newStatus"] or item["message"] for item in items] == [
            "Attempt 1 failed.", "FAILED", "b", "a", "half way", "RUNNING", "PENDING",
        ]  # fmt: skip
        assert items[4] == {
            "id": posted.json()["ids"][0], "taskId": leased["id"], "agentId": "worker", "level": "DEBUG",
            "event": "note", "message": "half way", "details": {"password": "***"}, "previousStatus": None,
            "newStatus": None, "sessionKey": None, "stackTrace": None, "createdAt": items[4]["createdAt"],
        }  # fmt: skip
        assert (items[0]["stackTrace"], items[0]["event"], items[0]["level"]) == ("line 7", "error", "ERROR")
        assert (items[1]["previousStatus"], items[1]["level"]) == ("RUNNING", "ERROR")
        first = await client.get(logs, params={"limit": 3})
        rest = await client.get(logs, params={"cursor": first.json()["nextCursor"]})
        assert first.json()["items"] + rest.json()["items"] == items
        assert rest.json()["nextCursor"] is None
        errors = await client.get(logs, params={"level": "ERROR", "order": "asc"})
        assert [item["id"] for item in errors.json()["items"]] == [items[1]["id"], items[0]["id"]]
        assert_problem(await client.post(logs, json={"message": "late", "attemptToken": token}), 409, "stale_attempt")
        assert_problem(await client.post(logs, json={"message": "without a token"}), 409, "attempt_token_required")
        assert_problem(await client.get(logs, params={"cursor": "x"}), 400, "invalid_cursor")
        other_order = {"cursor": first.json()["nextCursor"], "order": "asc"}
        assert_problem(await client.get(logs, params=other_order), 400, "invalid_cursor")
        assert_problem(await client.get(logs, params={"waitMs": 5}), 400, "invalid_query")
        both = {"lines": [{"message": "a"}], "message": "b", "attemptToken": token}
        assert_problem(await client.post(logs, json=both), 400, "invalid_body")


async def test_log_long_poll_returns_when_a_line_is_added(zone: FreshZone) -> None:
    async with admin_client(zone) as client, admin_client(zone) as reader:
        leased = await claim_new_task(client)
        logs = f"{TASKS}/{leased['id']}/logs"
        page = (await reader.get(logs, params={"order": "asc"})).json()
        assert len(page["items"]) == 2
        empty = (await reader.get(logs, params={"order": "asc", "cursor": page["nextCursor"], "waitMs": 1})).json()
        assert empty["items"] == []
        query = {"order": "asc", "cursor": empty["nextCursor"], "waitMs": 20_000}
        waiting = asyncio.create_task(reader.get(logs, params=query))
        body = {"message": "news", "attemptToken": leased["attemptToken"]}
        assert (await client.post(logs, json=body)).status_code == 201
        more = (await waiting).json()
        assert [item["message"] for item in more["items"]] == ["news"]


async def test_costs_are_reported_and_a_spent_budget_blocks_claims_until_raised(zone: FreshZone) -> None:
    async with admin_client(zone) as client, admin_client(zone) as worker:
        leased = await claim_new_task(client)
        day = {"scope": "workspace", "period": "day"}
        created = await client.put(BUDGETS, json={**day, "usd": 0.5})
        assert (created.status_code, json_object(created)["usedUsd"], json_object(created)["isSpent"]) == (
            200,
            0,
            False,
        )
        costs = [{"model": "opus", "inputTokens": 10, "outputTokens": 5, "usd": 0.75}]
        reported = {"progressPercent": 5, "costs": costs, "attemptToken": leased["attemptToken"]}
        progressed = await client.patch(f"{TASKS}/{leased['id']}/progress", json=reported)
        assert json_object(progressed)["costs"] == {"usd": 0.75, "inputTokens": 10, "outputTokens": 5}
        sums = (await client.get(COSTS, params={"groupBy": "model"})).json()
        assert sums["items"] == [{"key": "opus", "usd": 0.75, "inputTokens": 10, "outputTokens": 5}]
        blocked = await create_task(client)
        assert await claim(client) == []
        explanation = (await client.get(f"{TASKS}/{blocked['id']}/explain")).json()
        assert (explanation["code"], explanation["budget"]["scope"], explanation["budget"]["usedUsd"]) == (
            "budget_spent",
            "workspace",
            0.75,
        )
        assert explanation["until"] == explanation["budget"]["periodEndsAt"]
        waiting = asyncio.create_task(claim(worker, wait_ms=20_000))
        raised = await client.put(BUDGETS, json={**day, "usd": 5})
        assert json_object(raised)["isSpent"] is False
        assert [leased_task["id"] for leased_task in await waiting] == [blocked["id"]]
        listed = (await client.get(BUDGETS)).json()
        assert [(b["scope"], b["key"], b["usd"]) for b in listed["items"]] == [("workspace", None, 5.0)]
        assert (await client.delete(BUDGETS, params=day)).status_code == 204
        assert_problem(await client.delete(BUDGETS, params=day), 404, "budget_not_found")
    types = [event["type"] for event in await read_events(zone) if event["type"].startswith("budget.")]
    assert types == ["budget.changed", "budget.spent", "budget.changed", "budget.changed"]


async def test_invalid_cost_and_budget_requests_are_refused_and_budgets_are_paged(zone: FreshZone) -> None:
    async with admin_client(zone) as client:
        for body, code in (
            ({"scope": "workspace", "period": "day"}, 400),
            ({"scope": "workspace", "period": "day", "key": "x", "usd": 1}, 400),
            ({"scope": "taskType", "period": "day", "usd": 1}, 400),
            ({"scope": "workspace", "period": "year", "usd": 1}, 400),
            ({"scope": "workspace", "period": "day", "usd": -1}, 400),
        ):
            assert_problem(await client.put(BUDGETS, json=body), code, "invalid_body")
        unknown = {"scope": "task", "key": "no-such-task", "period": "total", "tokens": 1}
        assert_problem(await client.put(BUDGETS, json=unknown), 404, "task_not_found")
        assert_problem(await client.get(COSTS, params={"since": "2026-02-30"}), 400, "invalid_query")
        assert_problem(await client.get(COSTS, params={"groupBy": "moon"}), 400, "invalid_query")
        assert_problem(await client.get(COSTS, params={"cursor": "x"}), 400, "invalid_cursor")
        assert_problem(await client.get(BUDGETS, params={"cursor": "x"}), 400, "invalid_cursor")
        for kind in ("a", "b", "c"):
            put = {"scope": "taskType", "key": kind, "period": "month", "tokens": 5}
            assert (await client.put(BUDGETS, json=put)).status_code == 200
        first = (await client.get(BUDGETS, params={"limit": 2})).json()
        rest = (await client.get(BUDGETS, params={"limit": 2, "cursor": first["nextCursor"]})).json()
        assert [item["key"] for item in first["items"] + rest["items"]] == ["a", "b", "c"]
        assert rest["nextCursor"] is None


async def test_task_tree_lists_dependents_and_tasks_of_other_zones_are_404(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    async with admin_client(zone) as client, admin_client(other) as other_client:
        first = await create_task(client)
        second = await create_task(client, dependsOn=[first["id"]])
        tree = (await client.get(f"{TASKS}/{first['id']}/tree")).json()
        assert [(node["id"], node["depth"]) for node in tree["items"]] == [(first["id"], 0), (second["id"], 1)]
        assert tree["items"][1]["dependsOn"] == [first["id"]]
        explanation = (await client.get(f"{TASKS}/{second['id']}/explain")).json()
        assert [dependency["id"] for dependency in explanation["waitsFor"]] == [first["id"]]
        for rest in ("tree", "explain", "logs"):
            assert_problem(await other_client.get(f"{TASKS}/{first['id']}/{rest}"), 404, "task_not_found")


async def test_repeated_progress_is_charged_once_by_key_or_progress_id(zone: FreshZone) -> None:
    async with zone.client() as client:
        await client.put("/api/v1/agents/worker", json={})
        path = f"{TASKS}/{(await create_task(client))['id']}"
        [leased] = await claim(client)
        body = {"costs": [{"model": "m", "usd": 0.5}], "attemptToken": leased["attemptToken"]}
        key = {"Idempotency-Key": "first"}
        for _ in range(2):
            response = await client.patch(f"{path}/progress", json=body, headers=key)
            assert (response.status_code, response.json()["costs"]["usd"]) == (200, 0.5)
        conflicting = await client.patch(f"{path}/progress", json={**body, "currentStep": "s"}, headers=key)
        assert_problem(conflicting, 422, "idempotency_key_conflict")
        mismatched = await client.patch(f"{path}/progress", json={**body, "progressId": "second"}, headers=key)
        assert_problem(mismatched, 400, "idempotency_key_mismatch")
        for _ in range(2):
            items = [{**body, "id": leased["id"], "progressId": "second"}]
            bulk = await client.post(f"{TASKS}/progress", json={"items": items})
            assert bulk.json()["items"][0].get("error") is None, bulk.text
        assert (await client.get(path)).json()["costs"]["usd"] == 1.0
