"""Over HTTP: the logs of tasks, why they are as they are, what they cost, and what they may cost."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.support.zone import FreshZone, assert_problem, create_zone, json_object, read_events

TASKS = "/api/v1/agent-tasks"
BUDGETS = "/api/v1/budgets"
COSTS = "/api/v1/costs"


def ruler(zone: FreshZone) -> httpx.AsyncClient:
    return zone.client(zone.token(role="ADMIN"))


async def task(client: httpx.AsyncClient, **said: object) -> dict[str, Any]:
    answer = await client.post(TASKS, json={"title": "a task", "taskType": "development", **said})
    assert answer.status_code == 201, answer.text
    return json_object(answer)


async def claimed(client: httpx.AsyncClient, agent: str = "worker", wait_ms: int = 0) -> list[dict[str, Any]]:
    answer = await client.post(f"/api/v1/agents/{agent}/claim", json={"max": 1, "waitMs": wait_ms})
    assert answer.status_code == 200, answer.text
    found = answer.json()["tasks"]
    assert isinstance(found, list)
    return found


async def at_work(client: httpx.AsyncClient) -> dict[str, Any]:
    """A task that the agent `worker` holds, with its token."""
    answer = await client.put("/api/v1/agents/worker", json={"maxConcurrentTasks": 100})
    assert answer.status_code in (200, 201), answer.text
    await task(client)
    [leased] = await claimed(client)
    return leased


async def test_a_task_has_a_log_that_its_agent_writes_and_everybody_reads(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        leased = await at_work(client)
        logs, token = f"{TASKS}/{leased['id']}/logs", leased["attemptToken"]
        line = {"message": "half way", "level": "DEBUG", "event": "note", "details": {"password": "canary"}}
        said = await client.post(logs, json={**line, "attemptToken": token})
        assert said.status_code == 201, said.text
        many = await client.post(logs, json={"lines": [{"message": "a"}, {"message": "b"}], "attemptToken": token})
        assert len(many.json()["ids"]) == 2
        failed = {"error": "broken", "stackTrace": "line 7", "attemptToken": token}
        assert (await client.post(f"{TASKS}/{leased['id']}/fail", json=failed)).status_code == 200
        items = (await client.get(logs)).json()["items"]
        assert [item["newStatus"] or item["message"] for item in items] == [
            "Attempt 1 has failed.", "FAILED", "b", "a", "half way", "RUNNING", "PENDING",
        ]  # fmt: skip
        assert items[4] == {
            "id": said.json()["ids"][0], "taskId": leased["id"], "agentId": "worker", "level": "DEBUG",
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
        assert_problem(await client.post(logs, json={"message": "who"}), 409, "attempt_token_required")
        assert_problem(await client.get(logs, params={"cursor": "x"}), 400, "invalid_cursor")
        foreign = {"cursor": first.json()["nextCursor"], "order": "asc"}
        assert_problem(await client.get(logs, params=foreign), 400, "invalid_cursor")
        assert_problem(await client.get(logs, params={"waitMs": 5}), 400, "invalid_query")
        both = {"lines": [{"message": "a"}], "message": "b", "attemptToken": token}
        assert_problem(await client.post(logs, json=both), 400, "invalid_body")


async def test_whoever_follows_a_log_is_answered_when_it_grows(zone: FreshZone) -> None:
    async with ruler(zone) as client, ruler(zone) as reader:
        leased = await at_work(client)
        logs = f"{TASKS}/{leased['id']}/logs"
        page = (await reader.get(logs, params={"order": "asc"})).json()
        assert len(page["items"]) == 2
        nothing = (await reader.get(logs, params={"order": "asc", "cursor": page["nextCursor"], "waitMs": 1})).json()
        assert nothing["items"] == []
        asked = {"order": "asc", "cursor": nothing["nextCursor"], "waitMs": 20_000}
        waiting = asyncio.create_task(reader.get(logs, params=asked))
        said = {"message": "news", "attemptToken": leased["attemptToken"]}
        assert (await client.post(logs, json=said)).status_code == 201
        more = (await waiting).json()
        assert [item["message"] for item in more["items"]] == ["news"]


async def test_what_was_spent_is_shown_and_a_budget_holds_tasks_up_until_it_is_raised(zone: FreshZone) -> None:
    async with ruler(zone) as client, ruler(zone) as worker:
        leased = await at_work(client)
        day = {"scope": "workspace", "period": "day"}
        made = await client.put(BUDGETS, json={**day, "usd": 0.5})
        assert (made.status_code, json_object(made)["usedUsd"], json_object(made)["isSpent"]) == (200, 0, False)
        costs = [{"model": "opus", "inputTokens": 10, "outputTokens": 5, "usd": 0.75}]
        reported = {"progressPercent": 5, "costs": costs, "attemptToken": leased["attemptToken"]}
        progressed = await client.patch(f"{TASKS}/{leased['id']}/progress", json=reported)
        assert json_object(progressed)["costs"] == {"usd": 0.75, "inputTokens": 10, "outputTokens": 5}
        sums = (await client.get(COSTS, params={"groupBy": "model"})).json()
        assert sums["items"] == [{"key": "opus", "usd": 0.75, "inputTokens": 10, "outputTokens": 5}]
        waits = await task(client)
        assert await claimed(client) == []
        why = (await client.get(f"{TASKS}/{waits['id']}/explain")).json()
        assert (why["code"], why["budget"]["scope"], why["budget"]["usedUsd"]) == ("budget_spent", "workspace", 0.75)
        assert why["until"] == why["budget"]["periodEndsAt"]
        waiting = asyncio.create_task(claimed(worker, wait_ms=20_000))
        raised = await client.put(BUDGETS, json={**day, "usd": 5})
        assert json_object(raised)["isSpent"] is False
        assert [each["id"] for each in await waiting] == [waits["id"]]
        listed = (await client.get(BUDGETS)).json()
        assert [(b["scope"], b["key"], b["usd"]) for b in listed["items"]] == [("workspace", None, 5.0)]
        assert (await client.delete(BUDGETS, params=day)).status_code == 204
        assert_problem(await client.delete(BUDGETS, params=day), 404, "budget_not_found")
    told = [event["type"] for event in await read_events(zone) if event["type"].startswith("budget.")]
    assert told == ["budget.changed", "budget.spent", "budget.changed", "budget.changed"]


async def test_costs_and_budgets_say_what_is_wrong_with_a_request(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        for body, code in (
            ({"scope": "workspace", "period": "day"}, 400),
            ({"scope": "workspace", "period": "day", "key": "x", "usd": 1}, 400),
            ({"scope": "taskType", "period": "day", "usd": 1}, 400),
            ({"scope": "workspace", "period": "year", "usd": 1}, 400),
            ({"scope": "workspace", "period": "day", "usd": -1}, 400),
        ):
            assert_problem(await client.put(BUDGETS, json=body), code, "invalid_body")
        unknown = {"scope": "task", "key": "nobody", "period": "total", "tokens": 1}
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


async def test_a_tree_is_drawn_and_a_foreign_task_is_not_there(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    async with ruler(zone) as client, ruler(other) as stranger:
        first = await task(client)
        second = await task(client, dependsOn=[first["id"]])
        tree = (await client.get(f"{TASKS}/{first['id']}/tree")).json()
        assert [(node["id"], node["depth"]) for node in tree["items"]] == [(first["id"], 0), (second["id"], 1)]
        assert tree["items"][1]["dependsOn"] == [first["id"]]
        why = (await client.get(f"{TASKS}/{second['id']}/explain")).json()
        assert [each["id"] for each in why["waitsFor"]] == [first["id"]]
        for rest in ("tree", "explain", "logs"):
            assert_problem(await stranger.get(f"{TASKS}/{first['id']}/{rest}"), 404, "task_not_found")


async def test_progress_that_is_sent_again_is_charged_once_by_its_key_or_its_id(zone: FreshZone) -> None:
    async with zone.client() as client:
        await client.put("/api/v1/agents/worker", json={})
        path = f"{TASKS}/{(await task(client))['id']}"
        [leased] = await claimed(client)
        body = {"costs": [{"model": "m", "usd": 0.5}], "attemptToken": leased["attemptToken"]}
        key = {"Idempotency-Key": "first"}
        for _ in range(2):
            said = await client.patch(f"{path}/progress", json=body, headers=key)
            assert (said.status_code, said.json()["costs"]["usd"]) == (200, 0.5)
        other = await client.patch(f"{path}/progress", json={**body, "currentStep": "s"}, headers=key)
        assert_problem(other, 422, "idempotency_key_conflict")
        mixed = await client.patch(f"{path}/progress", json={**body, "progressId": "second"}, headers=key)
        assert_problem(mixed, 400, "idempotency_key_mismatch")
        for _ in range(2):
            items = [{**body, "id": leased["id"], "progressId": "second"}]
            many = await client.post(f"{TASKS}/progress", json={"items": items})
            assert many.json()["items"][0].get("error") is None, many.text
        assert (await client.get(path)).json()["costs"]["usd"] == 1.0
