"""A claim of tasks whose answer is read by nobody: what was given goes back, or is given again to whoever asks again,
or ends with its agent. None of it is lost, and none is held by two."""

from __future__ import annotations

import httpx

from tests.support.consistency import assert_check_passes
from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection, build_request
from tests.support.runtime import DirectDatabase, SqlValue
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import FreshZone, create_zone, json_object

BASE = "/api/v1"


async def agent(client: httpx.AsyncClient, name: str, silent_seconds: int = 60) -> None:
    body = {"staleThresholdSeconds": silent_seconds, "maxConcurrentTasks": 5}
    made = await client.put(f"{BASE}/agents/{name}", json=body)
    assert made.status_code == 201, made.text


async def waiting(server: ServerProcess, zone: FreshZone, name: str) -> RawConnection:
    """Somebody who has asked for one task, under an id of its own, and reads nothing."""
    connection = await RawConnection.open(server.url)
    body = {"max": 1, "waitMs": 30_000, "claimId": f"of {name}"}
    await connection.send(build_request("POST", f"{BASE}/agents/{name}/claim", zone.token(), body))
    return connection


async def make(client: httpx.AsyncClient, *names: str) -> None:
    for name in names:
        body = {"id": name, "title": name, "taskType": "any", "retryBackoffSeconds": 0}
        made = await client.post(f"{BASE}/agent-tasks", json=body)
        assert made.status_code == 201, made.text


def rows(side: DirectDatabase, zone: FreshZone) -> list[tuple[SqlValue, ...]]:
    return side.execute("select id, status, attempt, agent_id from agent_tasks where zone_id = ? order by id", zone.id)


async def test_what_a_killed_server_had_given_out_is_given_again_or_ends_with_its_agent(
    servers: Servers, launch: Launch
) -> None:
    launch = launch.with_environment(QD_COORDINATOR_INTERVAL_MS="500")
    server = await servers.start(launch)
    zone = await create_zone(server)
    side = DirectDatabase(launch.database_url)
    async with zone.client() as client:
        await agent(client, "back")
        await agent(client, "gone", silent_seconds=3)
        unread = [await waiting(server, zone, name) for name in ("back", "gone")]
        await make(client, "t1", "t2")

    async def are_given() -> bool:
        return {row[3] for row in rows(side, zone)} == {"back", "gone"}

    await eventually(are_given, "both were given out")
    server.kill()
    for connection in unread:
        connection.reset()
    again = await servers.start(launch)
    zone = FreshZone(again, zone.id)
    async with zone.client() as client:
        body = {"max": 1, "claimId": "of back"}
        [held] = json_object(await client.post(f"{BASE}/agents/back/claim", json=body))["tasks"]
        assert held["attempt"] == 1, "the same claim has what it was given then"
        done = await client.post(
            f"{BASE}/agent-tasks/{held['id']}/complete", json={"attemptToken": held["attemptToken"]}
        )
        assert done.status_code == 200, done.text
        # Whoever never comes back is missed, and what it held goes to whoever waits.
        taken = await client.post(f"{BASE}/agents/back/claim", json={"max": 1, "waitMs": 20_000})
        [other] = json_object(taken)["tasks"]
        assert (other["id"] != held["id"], other["attempt"]) == (True, 2)
        done = await client.post(
            f"{BASE}/agent-tasks/{other['id']}/complete", json={"attemptToken": other["attemptToken"]}
        )
        assert done.status_code == 200, done.text
        gone = json_object(await client.get(f"{BASE}/agents/gone"))
        assert (gone["status"], gone["statusReason"]) == ("ERROR", "stale")
    await assert_check_passes(servers, launch)


async def test_what_is_given_to_one_who_has_hung_up_goes_back_and_does_not_count(
    server: ServerProcess, zone: FreshZone
) -> None:
    side = DirectDatabase(server.launch.database_url)
    async with zone.client() as client:
        for name in ("gone", "other"):
            await agent(client, name)
        connection = await waiting(server, zone, "gone")
        connection.reset()
        await make(client, "t1")
        taken = await client.post(f"{BASE}/agents/other/claim", json={"max": 1, "waitMs": 1_000})
        [held] = json_object(taken)["tasks"]
        assert (held["id"], held["attempt"]) == ("t1", 1), "sooner than anybody could be missed, and uncounted"
    [[_, status, attempt, agent_id]] = rows(side, zone)
    assert (status, attempt, agent_id) == ("RUNNING", 1, "other")
