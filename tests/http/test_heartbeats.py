"""Heartbeats over HTTP: the agent's own part, its word about its task, and which of the two is refused when."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.zone import FreshZone, assert_problem, json_object, read_events

AGENTS = "/api/v1/agents"
TASKS = "/api/v1/agent-tasks"


async def two_tasks(client: httpx.AsyncClient, agent: str = "a") -> list[dict[str, Any]]:
    """An agent, and two tasks that it holds."""
    await client.put(f"{AGENTS}/{agent}", json={"maxConcurrentTasks": 10})
    said = [{"title": f"task {n}", "taskType": "development", "retryBackoffSeconds": 3_600} for n in (1, 2)]
    await client.post(TASKS, json={"tasks": said})
    tasks: list[dict[str, Any]] = json_object(await client.post(f"{AGENTS}/{agent}/claim", json={"max": 2}))["tasks"]
    assert len(tasks) == 2
    return tasks


def of(task: dict[str, Any], **said: object) -> dict[str, object]:
    return {"currentTaskId": task["id"], "attemptToken": task["attemptToken"], **said}


async def beat(client: httpx.AsyncClient, said: dict[str, object], agent: str = "a") -> dict[str, Any]:
    return json_object(await client.post(f"{AGENTS}/{agent}/heartbeat", json=said))


async def last_seen(client: httpx.AsyncClient, agent: str = "a") -> str:
    seen: str = json_object(await client.get(f"{AGENTS}/{agent}"))["lastSeenAt"]
    return seen


async def test_a_heartbeat_with_its_attempts_token_keeps_progress_and_checkpoint(zone: FreshZone) -> None:
    async with zone.client() as client:
        task, _ = await two_tasks(client)
        said = of(task, progressPercent=30, currentStep="linking", checkpointData={"page": 7})
        told = await beat(client, said)
        assert (told["cancel"], told["pause"], told["warnings"]) == ([], [], [])
        now = json_object(await client.get(f"{TASKS}/{task['id']}"))
    assert (now["progressPercent"], now["currentStep"], now["checkpointData"]) == (30, "linking", {"page": 7})


async def test_with_the_token_of_what_was_canceled_or_paused_it_counts_and_is_told_so(zone: FreshZone) -> None:
    async with zone.client() as client:
        canceled, paused = await two_tasks(client)
        await client.post(f"{TASKS}/{canceled['id']}/cancel", json={"reason": "not wanted"})
        await client.patch(f"{TASKS}/{paused['id']}", json={"status": "PAUSED"})
        both = [canceled["id"], paused["id"]]
        for task, word in ((canceled, "canceled (not wanted)"), (paused, "PAUSED")):
            before = await last_seen(client)
            told = await beat(client, of(task, progressPercent=77, taskIds=both))
            assert (told["cancel"], told["pause"]) == ([canceled["id"]], [paused["id"]])
            [warning] = told["warnings"]
            assert (warning["code"], warning["taskId"]) == ("stale_attempt", task["id"])
            assert word in warning["detail"]
            assert await last_seen(client) > before
            assert json_object(await client.get(f"{TASKS}/{task['id']}"))["progressPercent"] == 0


async def test_with_the_token_of_a_task_that_another_attempt_has_it_is_refused_and_changes_nothing(
    zone: FreshZone,
) -> None:
    async with zone.client() as client:
        task, _ = await two_tasks(client)
        given_back = {"attemptToken": task["attemptToken"]}
        await client.post(f"{TASKS}/{task['id']}/release", json=given_back)
        await client.put(f"{AGENTS}/b", json={})
        [taken] = json_object(await client.post(f"{AGENTS}/b/claim", json={}))["tasks"]
        assert taken["id"] == task["id"]
        before = await last_seen(client)
        said = of(task, progressPercent=77, status="degraded")
        answer = await client.post(f"{AGENTS}/a/heartbeat", json=said)
        assert_problem(answer, 409, "stale_attempt")
        assert "another has begun" in answer.json()["detail"]
        assert await last_seen(client) == before
        assert json_object(await client.get(f"{AGENTS}/a"))["status"] == "WORKING"
        assert json_object(await client.get(f"{TASKS}/{task['id']}"))["progressPercent"] == 0


async def test_a_heartbeat_that_is_refused_has_changed_nothing(zone: FreshZone) -> None:
    async with zone.client() as client:
        task, other = await two_tasks(client)
        await client.put(f"{AGENTS}/gone", json={})
        await client.post(f"{AGENTS}/gone/terminate", json={})
        said = of(task, progressPercent=77)
        position = len(await read_events(zone))
        large = of(task, progressPercent=77, checkpointData={"x": "y" * 1_100_000})
        before = await last_seen(client)
        for agent, body, status, code in (
            ("nope", said, 404, "agent_not_found"),
            ("gone", said, 409, "agent_terminated"),
            ("a", said | {"currentTaskId": "nothing"}, 404, "task_not_found"),
            ("a", said | {"metadata": {"x": "y" * 9_000}}, 400, "metadata_too_large"),
            ("a", said | {"checkpointData": {"$sealed": "x"}}, 400, "reserved_key"),
            ("a", large, 413, "field_too_large"),
        ):
            answer = await client.post(f"{AGENTS}/{agent}/heartbeat", json=body)
            assert_problem(answer, status, code)
        assert await last_seen(client) == before
        for each in (task, other):
            now = json_object(await client.get(f"{TASKS}/{each['id']}"))
            assert (now["progressPercent"], now["checkpointData"]) == (0, {})
        assert len(await read_events(zone)) == position


async def test_one_that_names_nothing_and_holds_nothing_is_told_nothing(zone: FreshZone) -> None:
    async with zone.client() as client:
        await client.put(f"{AGENTS}/a", json={})
        told = await beat(client, {})
        assert told == {"cancel": [], "pause": [], "warnings": [], "next": 30}
        for task in await two_tasks(client):
            done = {"attemptToken": task["attemptToken"]}
            assert (await beat(client, {}))["warnings"] == []
            await client.post(f"{TASKS}/{task['id']}/complete", json=done)
        assert (await beat(client, {"taskIds": []}))["cancel"] == []
