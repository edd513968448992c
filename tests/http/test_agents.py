"""Agents over HTTP: registration, heartbeats, lists, termination, tokens and refusals."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from quarterdeck.core.caller import COORDINATOR_ADMIN, LIFECYCLE
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, json_object, read_events

AGENTS = "/api/v1/agents"


def admin_client(zone: FreshZone) -> httpx.AsyncClient:
    return zone.client(zone.token(LIFECYCLE, COORDINATOR_ADMIN))


async def register(client: httpx.AsyncClient, agent: str = "a", **fields: object) -> dict[str, Any]:
    response = await client.put(f"{AGENTS}/{agent}", json=fields)
    assert response.status_code in (200, 201), response.text
    return json_object(response)


async def issue_token(zone: FreshZone, agent: str = "a", **fields: object) -> str:
    async with admin_client(zone) as client:
        response = await client.post(f"{AGENTS}/{agent}/token", json=fields)
    assert response.status_code == 201, response.text
    assert response.headers["cache-control"] == "no-store"
    token: str = response.json()["token"]
    return token


async def test_put_registers_an_agent_and_a_second_put_updates_it(zone: FreshZone) -> None:
    body = {
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
        created = await client.put(f"{AGENTS}/dev-1", json=body)
        assert created.status_code == 201
        assert json_object(created) | body == json_object(created)
        assert (created.json()["workspaceId"], created.json()["status"]) == (zone.id, "IDLE")
        assert (created.json()["coordinatorEnabled"], created.json()["staleThresholdSeconds"]) == (True, 180)
        updated = await client.put(f"{AGENTS}/dev-1", json={"pool": None})
        assert (updated.status_code, updated.json()["pool"], updated.json()["model"]) == (200, None, "claude-sonnet-4")
        assert json_object(await client.get(f"{AGENTS}/dev-1")) == json_object(updated)
    assert [e["type"] for e in await read_events(zone, subject="dev-1")] == ["agent.registered", "agent.changed"]


async def test_heartbeat_returns_instructions_and_is_shown_in_health(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        body = {
            "status": "degraded",
            "currentTaskId": "t",
            "progressPercent": 42,
            "currentStep": "linking",
            "memoryMb": 512.4,
            "cpuPercent": 7,
            "metadata": {"host": "h"},
        }
        response = await client.post(f"{AGENTS}/a/heartbeat", json=body)
        assert response.status_code == 200
        assert set(response.json()) == {"cancel", "pause", "warnings", "next"}
        assert response.json()["next"] == 30
        health = json_object(await client.get(f"{AGENTS}/a/health"))
        assert (health["status"], health["isStale"], health["currentTaskId"]) == ("DEGRADED", False, "t")
        assert (health["memoryMb"], health["cpuPercent"], health["progressPercent"]) == (512, 7, 42)
        assert 0 <= health["ageSeconds"] < 60
        assert [row["metadata"] for row in health["heartbeats"]] == [{"host": "h"}]
        assert (await client.post(f"{AGENTS}/a/heartbeat", json={})).status_code == 200
        assert (await client.get(f"{AGENTS}/a")).json()["status"] == "IDLE"


async def test_checkpoint_without_attempt_token_returns_a_warning(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        body = {"currentTaskId": "t", "checkpointData": {"at": 1}}
        response = await client.post(f"{AGENTS}/a/heartbeat", json=body)
    [warning] = response.json()["warnings"]
    assert (warning["code"], warning["taskId"]) == ("attempt_token_required", "t")


async def test_agent_list_is_paged_and_filtered(zone: FreshZone) -> None:
    async with zone.client() as client:
        for n in range(5):
            await register(client, f"a{n}", capabilities=["x"] if n % 2 else [], coordinatorEnabled=n != 3)
        first = await client.get(AGENTS, params={"limit": 3})
        rest = await client.get(first.headers["link"].partition(">")[0].strip("<"))
        ids = [item["id"] for page in (first, rest) for item in page.json()["items"]]
        assert (ids, rest.json()["nextCursor"]) == ([f"a{n}" for n in range(5)], None)
        for query, expected in (
            ({"capability": "x"}, ["a1", "a3"]),
            ({"capability": "x", "coordinatorEnabled": "true"}, ["a1"]),
            ({"coordinatorEnabled": "false", "limit": "1"}, ["a3"]),
            ({"status": "WORKING"}, []),
        ):
            response = await client.get(AGENTS, params=query)
            assert [item["id"] for item in response.json()["items"]] == expected, query
        for invalid in ({"status": "BUSY"}, {"limit": "0"}, {"capability": ""}, {"coordinatorEnabled": "maybe"}):
            assert_problem(await client.get(AGENTS, params=invalid), 400)
        assert_problem(await client.get(AGENTS, params={"cursor": "x"}), 400, "invalid_cursor")


async def test_terminate_returns_the_agent_and_is_idempotent(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        for _ in range(2):
            terminated = await client.post(
                f"{AGENTS}/a/terminate", json={"reason": "Manual shutdown", "graceful": True}
            )
            assert (terminated.status_code, terminated.json()["status"]) == (200, "TERMINATED")
            assert terminated.json()["statusReason"] == "Manual shutdown"
        assert_problem(await client.post(f"{AGENTS}/a/heartbeat", json={}), 409, "agent_terminated")
        assert (await client.put(f"{AGENTS}/a", json={})).status_code == 201
        assert (await client.post(f"{AGENTS}/a/heartbeat", json={})).status_code == 200
    types = [event["type"] for event in await read_events(zone, subject="a")]
    assert types == ["agent.registered", "agent.terminated", "agent.registered"]


async def test_agent_token_acts_for_its_agent_only_and_ends_with_it(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client, capabilities=["x"])
        await register(client, "b")
    async with zone.client(await issue_token(zone)) as agent:
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
        # Routes that are not about agents refuse the token too.
        spawned = await agent.post(f"/zones/{zone.id}/agents", json={"application_id": APP, "session_sid": "s"})
        assert_problem(spawned, 401, "agent_ended")
        assert_problem(await agent.get(f"/zones/{zone.id}/events"), 401, "agent_ended")
        async with zone.client() as client:
            await register(client)
        # A new agent with the same id is another agent: the old token does not act for it.
        assert_problem(await agent.post(f"{AGENTS}/a/heartbeat", json={}), 401, "agent_ended")
    async with zone.client(await issue_token(zone)) as new_agent:
        assert (await new_agent.post(f"{AGENTS}/a/heartbeat", json={})).status_code == 200


async def test_event_log_contains_no_token(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
    token = await issue_token(zone, attemptToken="unknown-attempt", ttlSeconds=60)
    events = str(await read_events(zone))
    assert "agent.token_issued" in events
    assert token.rpartition(".")[2] not in events
    assert "unknown-attempt" not in events


async def test_agents_of_another_workspace_are_not_found(zone: FreshZone) -> None:
    other_zone = await create_zone(zone.server)
    async with zone.client() as client, other_zone.client() as other_client:
        await register(client)
        for method, path in (("GET", ""), ("GET", "/health"), ("POST", "/heartbeat"), ("POST", "/terminate")):
            response = await other_client.request(method, f"{AGENTS}/a{path}", json={} if method == "POST" else None)
            assert_problem(response, 404, "agent_not_found")
        assert (await other_client.get(AGENTS)).json()["items"] == []
        headers = {"X-Workspace-ID": zone.id}
        assert_problem(await other_client.get(AGENTS, headers=headers), 404, "workspace_not_found")
    async with zone.client(await issue_token(zone)) as agent:
        headers = {"X-Workspace-ID": other_zone.id}
        assert_problem(await agent.post(f"{AGENTS}/a/heartbeat", json={}, headers=headers), 404)


async def test_unconfigured_launcher_is_refused(zone: FreshZone) -> None:
    async with admin_client(zone) as client:
        for name in ("sh", "process", "__class__"):
            response = await client.put(f"{AGENTS}/a", json={"launcher": name})
            refused = assert_problem(response, 400, "unknown_launcher")
            assert (refused["field"], refused["launchers"]) == ("launcher", []), (
                "the refusal lists the configured launchers"
            )
        assert_problem(await client.put(f"{AGENTS}/a", json={"launcher": "/bin/sh"}), 400)
        assert_problem(await client.get(f"{AGENTS}/a"), 404, "agent_not_found")


@pytest.mark.parametrize(
    ("path", "body", "field"),
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
async def test_malformed_body_returns_400_with_its_field_and_changes_nothing(
    zone: FreshZone, path: str, body: dict[str, object], field: str
) -> None:
    async with admin_client(zone) as client:
        created = await register(client)
        response = await client.request("POST" if path else "PUT", f"{AGENTS}/a{path}", json=body)
        assert assert_problem(response, 400)["field"] == field
        assert json_object(await client.get(f"{AGENTS}/a")) == created
