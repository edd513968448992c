"""Heartbeats over HTTP: agent status, task progress, warnings and refusals."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.zone import FreshZone, assert_problem, json_object, read_events

AGENTS = "/api/v1/agents"
TASKS = "/api/v1/agent-tasks"


async def claim_two_tasks(client: httpx.AsyncClient, agent: str = "a") -> list[dict[str, Any]]:
    """Registers an agent that claims two tasks."""
    await client.put(f"{AGENTS}/{agent}", json={"maxConcurrentTasks": 10})
    bodies = [{"title": f"task {n}", "taskType": "development", "retryBackoffSeconds": 3_600} for n in (1, 2)]
    await client.post(TASKS, json={"tasks": bodies})
    tasks: list[dict[str, Any]] = json_object(await client.post(f"{AGENTS}/{agent}/claim", json={"max": 2}))["tasks"]
    assert len(tasks) == 2
    return tasks


def task_report(task: dict[str, Any], **fields: object) -> dict[str, object]:
    return {"currentTaskId": task["id"], "attemptToken": task["attemptToken"], **fields}


async def send_heartbeat(client: httpx.AsyncClient, body: dict[str, object], agent: str = "a") -> dict[str, Any]:
    return json_object(await client.post(f"{AGENTS}/{agent}/heartbeat", json=body))


async def last_seen(client: httpx.AsyncClient, agent: str = "a") -> str:
    seen: str = json_object(await client.get(f"{AGENTS}/{agent}"))["lastSeenAt"]
    return seen


async def test_heartbeat_with_attempt_token_stores_progress_and_checkpoint(zone: FreshZone) -> None:
    async with zone.client() as client:
        task, _ = await claim_two_tasks(client)
        report = task_report(task, progressPercent=30, currentStep="linking", checkpointData={"page": 7})
        reply = await send_heartbeat(client, report)
        assert (reply["cancel"], reply["pause"], reply["warnings"]) == ([], [], [])
        stored = json_object(await client.get(f"{TASKS}/{task['id']}"))
    assert (stored["progressPercent"], stored["currentStep"], stored["checkpointData"]) == (30, "linking", {"page": 7})


async def test_heartbeat_for_a_canceled_or_paused_task_counts_and_returns_a_warning(zone: FreshZone) -> None:
    async with zone.client() as client:
        canceled, paused = await claim_two_tasks(client)
        await client.post(f"{TASKS}/{canceled['id']}/cancel", json={"reason": "not wanted"})
        await client.patch(f"{TASKS}/{paused['id']}", json={"status": "PAUSED"})
        both = [canceled["id"], paused["id"]]
        for task, reason in ((canceled, "canceled (not wanted)"), (paused, "PAUSED")):
            before = await last_seen(client)
            reply = await send_heartbeat(client, task_report(task, progressPercent=77, taskIds=both))
            assert (reply["cancel"], reply["pause"]) == ([canceled["id"]], [paused["id"]])
            [warning] = reply["warnings"]
            assert (warning["code"], warning["taskId"]) == ("stale_attempt", task["id"])
            assert reason in warning["detail"]
            assert await last_seen(client) > before
            assert json_object(await client.get(f"{TASKS}/{task['id']}"))["progressPercent"] == 0


async def test_heartbeat_for_a_task_of_another_attempt_is_refused(zone: FreshZone) -> None:
    async with zone.client() as client:
        task, _ = await claim_two_tasks(client)
        token = {"attemptToken": task["attemptToken"]}
        await client.post(f"{TASKS}/{task['id']}/release", json=token)
        await client.put(f"{AGENTS}/b", json={})
        [taken] = json_object(await client.post(f"{AGENTS}/b/claim", json={}))["tasks"]
        assert taken["id"] == task["id"]
        before = await last_seen(client)
        report = task_report(task, progressPercent=77, status="degraded")
        response = await client.post(f"{AGENTS}/a/heartbeat", json=report)
        assert_problem(response, 409, "stale_attempt")
        assert "another attempt is running" in response.json()["detail"]
        assert await last_seen(client) == before
        assert json_object(await client.get(f"{AGENTS}/a"))["status"] == "WORKING"
        assert json_object(await client.get(f"{TASKS}/{task['id']}"))["progressPercent"] == 0


async def test_refused_heartbeat_changes_nothing(zone: FreshZone) -> None:
    async with zone.client() as client:
        task, other = await claim_two_tasks(client)
        await client.put(f"{AGENTS}/gone", json={})
        await client.post(f"{AGENTS}/gone/terminate", json={})
        report = task_report(task, progressPercent=77)
        position = len(await read_events(zone))
        large = task_report(task, progressPercent=77, checkpointData={"x": "y" * 1_100_000})
        before = await last_seen(client)
        for agent, body, status, code in (
            ("no-such-agent", report, 404, "agent_not_found"),
            ("gone", report, 409, "agent_terminated"),
            ("a", report | {"currentTaskId": "no-such-task"}, 404, "task_not_found"),
            ("a", report | {"metadata": {"x": "y" * 9_000}}, 400, "metadata_too_large"),
            ("a", report | {"checkpointData": {"$sealed": "x"}}, 400, "reserved_key"),
            ("a", large, 413, "field_too_large"),
        ):
            response = await client.post(f"{AGENTS}/{agent}/heartbeat", json=body)
            assert_problem(response, status, code)
        assert await last_seen(client) == before
        for each in (task, other):
            stored = json_object(await client.get(f"{TASKS}/{each['id']}"))
            assert (stored["progressPercent"], stored["checkpointData"]) == (0, {})
        assert len(await read_events(zone)) == position


async def test_empty_heartbeat_returns_no_instructions_or_warnings(zone: FreshZone) -> None:
    async with zone.client() as client:
        await client.put(f"{AGENTS}/a", json={})
        reply = await send_heartbeat(client, {})
        assert reply == {"cancel": [], "pause": [], "warnings": [], "next": 30}
        for task in await claim_two_tasks(client):
            token = {"attemptToken": task["attemptToken"]}
            assert (await send_heartbeat(client, {}))["warnings"] == []
            await client.post(f"{TASKS}/{task['id']}/complete", json=token)
        assert (await send_heartbeat(client, {"taskIds": []}))["cancel"] == []
