"""A claim whose response is never read: its tasks are released, returned to the repeated claim, or freed when the
agent is stale. No task is lost, and none has two holders."""

from __future__ import annotations

import httpx

from tests.support.consistency import assert_check_passes
from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection, build_request
from tests.support.runtime import DirectDatabase, SqlValue
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import FreshZone, create_zone, json_object

BASE = "/api/v1"


async def register_agent(client: httpx.AsyncClient, name: str, silent_seconds: int = 60) -> None:
    body = {"staleThresholdSeconds": silent_seconds, "maxConcurrentTasks": 5}
    response = await client.put(f"{BASE}/agents/{name}", json=body)
    assert response.status_code == 201, response.text


async def start_unread_claim(server: ServerProcess, zone: FreshZone, name: str) -> RawConnection:
    """Send a long-poll claim of one task with its own claim id, and read no response."""
    connection = await RawConnection.open(server.url)
    body = {"max": 1, "waitMs": 30_000, "claimId": f"claim-{name}"}
    await connection.send(build_request("POST", f"{BASE}/agents/{name}/claim", zone.token(), body))
    return connection


async def create_tasks(client: httpx.AsyncClient, *names: str) -> None:
    for name in names:
        body = {"id": name, "title": name, "taskType": "any", "retryBackoffSeconds": 0}
        response = await client.post(f"{BASE}/agent-tasks", json=body)
        assert response.status_code == 201, response.text


def read_tasks(database: DirectDatabase, zone: FreshZone) -> list[tuple[SqlValue, ...]]:
    return database.execute(
        "select id, status, attempt, agent_id from agent_tasks where zone_id = ? order by id", zone.id
    )


async def test_unread_claim_after_a_kill_is_repeated_or_freed_when_its_agent_is_stale(
    servers: Servers, launch: Launch
) -> None:
    launch = launch.with_environment(QD_COORDINATOR_INTERVAL_MS="500")
    server = await servers.start(launch)
    zone = await create_zone(server)
    database = DirectDatabase(launch.database_url)
    async with zone.client() as client:
        await register_agent(client, "returning")
        await register_agent(client, "silent", silent_seconds=3)
        unread = [await start_unread_claim(server, zone, name) for name in ("returning", "silent")]
        await create_tasks(client, "t1", "t2")

    async def are_claimed() -> bool:
        return {row[3] for row in read_tasks(database, zone)} == {"returning", "silent"}

    await eventually(are_claimed, "both tasks were claimed")
    server.kill()
    for connection in unread:
        connection.reset()
    restarted = await servers.start(launch)
    zone = FreshZone(restarted, zone.id)
    async with zone.client() as client:
        body = {"max": 1, "claimId": "claim-returning"}
        [task] = json_object(await client.post(f"{BASE}/agents/returning/claim", json=body))["tasks"]
        assert task["attempt"] == 1, "the repeated claim returns the same attempt"
        done = await client.post(
            f"{BASE}/agent-tasks/{task['id']}/complete", json={"attemptToken": task["attemptToken"]}
        )
        assert done.status_code == 200, done.text
        # The silent agent becomes stale, and its task goes to the waiting claim.
        claimed = await client.post(f"{BASE}/agents/returning/claim", json={"max": 1, "waitMs": 20_000})
        [other] = json_object(claimed)["tasks"]
        assert (other["id"] != task["id"], other["attempt"]) == (True, 2)
        done = await client.post(
            f"{BASE}/agent-tasks/{other['id']}/complete", json={"attemptToken": other["attemptToken"]}
        )
        assert done.status_code == 200, done.text
        stale_agent = json_object(await client.get(f"{BASE}/agents/silent"))
        assert (stale_agent["status"], stale_agent["statusReason"]) == ("ERROR", "stale")
    await assert_check_passes(servers, launch)


async def test_task_claimed_for_a_closed_connection_is_released_without_using_an_attempt(
    server: ServerProcess, zone: FreshZone
) -> None:
    database = DirectDatabase(server.launch.database_url)
    async with zone.client() as client:
        for name in ("silent", "other"):
            await register_agent(client, name)
        connection = await start_unread_claim(server, zone, "silent")
        connection.reset()
        await create_tasks(client, "t1")
        claimed = await client.post(f"{BASE}/agents/other/claim", json={"max": 1, "waitMs": 1_000})
        [task] = json_object(claimed)["tasks"]
        assert (task["id"], task["attempt"]) == ("t1", 1), (
            "before any agent could be stale, and without using an attempt"
        )
    [[_, status, attempt, agent_id]] = read_tasks(database, zone)
    assert (status, attempt, agent_id) == ("RUNNING", 1, "other")
