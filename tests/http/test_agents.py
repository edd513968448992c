"""Agents over HTTP: registered, heard of, listed, ended; and what is told to those who may not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from quarterdeck.core.caller import COORDINATOR_ADMIN, LIFECYCLE
from tests.support.zone import FreshZone, assert_problem, create_zone, json_object, read_events

AGENTS = "/api/v1/agents"


def ruler(zone: FreshZone) -> httpx.AsyncClient:
    return zone.client(zone.token(LIFECYCLE, COORDINATOR_ADMIN))


async def register(client: httpx.AsyncClient, agent: str = "a", **said: object) -> dict[str, Any]:
    answer = await client.put(f"{AGENTS}/{agent}", json=said)
    assert answer.status_code in (200, 201), answer.text
    return json_object(answer)


async def token_of(zone: FreshZone, agent: str = "a", **asked: object) -> str:
    async with ruler(zone) as client:
        answer = await client.post(f"{AGENTS}/{agent}/token", json=asked)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    token: str = answer.json()["token"]
    return token


async def test_an_agent_is_registered_with_the_words_of_the_seed(zone: FreshZone) -> None:
    said = {
        "name": "Dev Agent #1",
        "model": "claude-sonnet-4",
        "capabilities": ["typescript", "nestjs", "prisma"],
        "maxConcurrentTasks": 2,
        "heartbeatIntervalSeconds": 30,
        "labels": {"zone": "eu"},
        "pool": "builders",
        "description": "builds",
    }
    async with zone.client() as client:
        made = await client.put(f"{AGENTS}/dev-1", json=said)
        assert made.status_code == 201
        assert json_object(made) | said == json_object(made)
        assert (made.json()["workspaceId"], made.json()["status"]) == (zone.id, "IDLE")
        assert (made.json()["coordinatorEnabled"], made.json()["staleThresholdSeconds"]) == (True, 180)
        again = await client.put(f"{AGENTS}/dev-1", json={"pool": None})
        assert (again.status_code, again.json()["pool"], again.json()["model"]) == (200, None, "claude-sonnet-4")
        assert json_object(await client.get(f"{AGENTS}/dev-1")) == json_object(again)
    assert [e["type"] for e in await read_events(zone, subject="dev-1")] == ["agent.registered", "agent.changed"]


async def test_a_heartbeat_is_answered_with_what_the_agent_must_know(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        said = {
            "status": "degraded",
            "currentTaskId": "t",
            "progressPercent": 42,
            "currentStep": "linking",
            "memoryMb": 512.4,
            "cpuPercent": 7,
            "metadata": {"host": "h"},
        }
        answer = await client.post(f"{AGENTS}/a/heartbeat", json=said)
        assert answer.status_code == 200
        assert set(answer.json()) == {"cancel", "pause", "warnings", "next"}
        assert answer.json()["next"] == 30
        health = json_object(await client.get(f"{AGENTS}/a/health"))
        assert (health["status"], health["isStale"], health["currentTaskId"]) == ("DEGRADED", False, "t")
        assert (health["memoryMb"], health["cpuPercent"], health["progressPercent"]) == (512, 7, 42)
        assert 0 <= health["ageSeconds"] < 60
        assert [row["metadata"] for row in health["heartbeats"]] == [{"host": "h"}]
        assert (await client.post(f"{AGENTS}/a/heartbeat", json={})).status_code == 200
        assert (await client.get(f"{AGENTS}/a")).json()["status"] == "IDLE"


async def test_a_checkpoint_without_its_attempts_token_is_not_kept_and_the_agent_is_told(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        said = {"currentTaskId": "t", "checkpointData": {"at": 1}}
        answer = await client.post(f"{AGENTS}/a/heartbeat", json=said)
    [warning] = answer.json()["warnings"]
    assert (warning["code"], warning["taskId"]) == ("attempt_token_required", "t")


async def test_agents_are_listed_by_what_they_are_page_by_page(zone: FreshZone) -> None:
    async with zone.client() as client:
        for n in range(5):
            await register(client, f"a{n}", capabilities=["x"] if n % 2 else [], coordinatorEnabled=n != 3)
        first = await client.get(AGENTS, params={"limit": 3})
        rest = await client.get(first.headers["link"].partition(">")[0].strip("<"))
        ids = [item["id"] for page in (first, rest) for item in page.json()["items"]]
        assert (ids, rest.json()["nextCursor"]) == ([f"a{n}" for n in range(5)], None)
        for query, found in (
            ({"capability": "x"}, ["a1", "a3"]),
            ({"capability": "x", "coordinatorEnabled": "true"}, ["a1"]),
            ({"coordinatorEnabled": "false", "limit": "1"}, ["a3"]),
            ({"status": "WORKING"}, []),
        ):
            answer = await client.get(AGENTS, params=query)
            assert [item["id"] for item in answer.json()["items"]] == found, query
        for bad in ({"status": "BUSY"}, {"limit": "0"}, {"capability": ""}, {"coordinatorEnabled": "maybe"}):
            assert_problem(await client.get(AGENTS, params=bad), 400)
        assert_problem(await client.get(AGENTS, params={"cursor": "x"}), 400, "invalid_cursor")


async def test_terminating_answers_with_the_agent_and_again_with_the_same(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        for _ in range(2):
            ended = await client.post(f"{AGENTS}/a/terminate", json={"reason": "Manual shutdown", "graceful": True})
            assert (ended.status_code, ended.json()["status"]) == (200, "TERMINATED")
            assert ended.json()["statusReason"] == "Manual shutdown"
        assert_problem(await client.post(f"{AGENTS}/a/heartbeat", json={}), 409, "agent_terminated")
        assert (await client.put(f"{AGENTS}/a", json={})).status_code == 201
        assert (await client.post(f"{AGENTS}/a/heartbeat", json={})).status_code == 200
    told = [event["type"] for event in await read_events(zone, subject="a")]
    assert told == ["agent.registered", "agent.terminated", "agent.registered"]


async def test_an_agents_token_acts_as_that_agent_alone_and_dies_with_it(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client, capabilities=["x"])
        await register(client, "b")
    async with zone.client(await token_of(zone)) as agent:
        assert (await agent.post(f"{AGENTS}/a/heartbeat", json={})).status_code == 200
        assert_problem(await agent.post(f"{AGENTS}/b/heartbeat", json={}), 403, "agent_required")
        assert_problem(await agent.put(f"{AGENTS}/b", json={}), 403, "agent_required")
        raised = await agent.put(f"{AGENTS}/a", json={"capabilities": ["x", "root"]})
        assert_problem(raised, 403, "capabilities_not_allowed")
        assert_problem(await agent.put(f"{AGENTS}/a", json={"launcher": "sh"}), 403, "forbidden_role")
        assert_problem(await agent.post(f"{AGENTS}/a/token", json={}), 403, "forbidden_role")
        assert_problem(await agent.post(f"{AGENTS}/b/terminate", json={}), 403)
        async with zone.client() as client:
            await client.post(f"{AGENTS}/a/terminate", json={})
        assert_problem(await agent.post(f"{AGENTS}/a/heartbeat", json={}), 401, "agent_ended")
        assert_problem(await agent.get(AGENTS), 401, "agent_ended")
        assert_problem(await agent.put(f"{AGENTS}/a", json={}), 401, "agent_ended")
        # Nor where nobody knows of agents.
        spawned = await agent.post(f"/zones/{zone.id}/agents", json={"agent_type": "t"})
        assert_problem(spawned, 401, "agent_ended")
        assert_problem(await agent.get(f"/zones/{zone.id}/events"), 401, "agent_ended")
        async with zone.client() as client:
            await register(client)
        # Whoever has its name now is another: what was made for the former does not speak for it.
        assert_problem(await agent.post(f"{AGENTS}/a/heartbeat", json={}), 401, "agent_ended")
    async with zone.client(await token_of(zone)) as anew:
        assert (await anew.post(f"{AGENTS}/a/heartbeat", json={})).status_code == 200


async def test_no_token_is_in_the_log(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
    token = await token_of(zone, attemptToken="attempt-of-nobody", ttlSeconds=60)
    told = str(await read_events(zone))
    assert "agent.token_issued" in told
    assert token.rpartition(".")[2] not in told
    assert "attempt-of-nobody" not in told


async def test_another_workspaces_agents_are_not_there(zone: FreshZone) -> None:
    elsewhere = await create_zone(zone.server)
    async with zone.client() as client, elsewhere.client() as stranger:
        await register(client)
        for method, path in (("GET", ""), ("GET", "/health"), ("POST", "/heartbeat"), ("POST", "/terminate")):
            answer = await stranger.request(method, f"{AGENTS}/a{path}", json={} if method == "POST" else None)
            assert_problem(answer, 404, "agent_not_found")
        assert (await stranger.get(AGENTS)).json()["items"] == []
        headers = {"X-Workspace-ID": zone.id}
        assert_problem(await stranger.get(AGENTS, headers=headers), 404, "workspace_not_found")
    async with zone.client(await token_of(zone)) as agent:
        headers = {"X-Workspace-ID": elsewhere.id}
        assert_problem(await agent.post(f"{AGENTS}/a/heartbeat", json={}, headers=headers), 404)


async def test_no_request_names_a_launcher_that_the_configuration_does_not(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        for name in ("sh", "process", "__class__"):
            answer = await client.put(f"{AGENTS}/a", json={"launcher": name})
            refused = assert_problem(answer, 400, "unknown_launcher")
            assert (refused["field"], refused["launchers"]) == ("launcher", []), "and it says which there are"
        assert_problem(await client.put(f"{AGENTS}/a", json={"launcher": "/bin/sh"}), 400)
        assert_problem(await client.get(f"{AGENTS}/a"), 404, "agent_not_found")


@pytest.mark.parametrize(
    ("path", "said", "field"),
    [
        ("", {"name": ""}, "name"),
        ("", {"name": None}, "name"),
        ("", {"capabilities": "x"}, "capabilities"),
        ("", {"capabilities": ["x"] * 65}, "capabilities"),
        ("", {"capabilities": ["x" * 101]}, "capabilities[0]"),
        ("", {"maxConcurrentTasks": 0}, "maxConcurrentTasks"),
        ("", {"maxConcurrentTasks": True}, "maxConcurrentTasks"),
        ("", {"staleThresholdSeconds": 10**9}, "staleThresholdSeconds"),
        ("", {"heartbeatIntervalSeconds": 0.5}, "heartbeatIntervalSeconds"),
        ("", {"labels": {"k": 1}}, "labels[...]"),
        ("/heartbeat", {"status": "fine"}, "status"),
        ("/heartbeat", {"progressPercent": 101}, "progressPercent"),
        ("/heartbeat", {"memoryMb": -1}, "memoryMb"),
        ("/heartbeat", {"currentTaskId": "../x"}, "currentTaskId"),
        ("/heartbeat", {"taskIds": ["t"] * 1_001}, "taskIds"),
        ("/heartbeat", {"metadata": {"x": "y" * 8_192}}, "metadata"),
        ("/terminate", {"reason": ""}, "reason"),
        ("/terminate", {"graceful": "yes"}, "graceful"),
        ("/token", {"ttlSeconds": 0}, "ttlSeconds"),
        ("/token", {"attemptToken": ""}, "attemptToken"),
    ],
)
async def test_a_malformed_body_is_400_with_its_field_and_changes_nothing(
    zone: FreshZone, path: str, said: dict[str, object], field: str
) -> None:
    async with ruler(zone) as client:
        made = await register(client)
        answer = await client.request("POST" if path else "PUT", f"{AGENTS}/a{path}", json=said)
        assert assert_problem(answer, 400)["field"] == field
        assert json_object(await client.get(f"{AGENTS}/a")) == made
