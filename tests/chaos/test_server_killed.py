"""A server is killed under load: acknowledged sessions are stored, and all other requests can be repeated."""

from __future__ import annotations

import asyncio
import itertools

from tests.support.client_pool import open_clients
from tests.support.consistency import assert_check_passes
from tests.support.raw_http import build_request, send_all
from tests.support.replicas import start_replica, start_replicas
from tests.support.rounds import ROUNDS
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.spawn_load import SpawnLoad, assert_one_session_per_key, stored_keys
from tests.support.zone import APP, FreshZone, assert_zone_counts_match_rows, create_zone, spawn

CLIENTS, SLOTS = 100, 8


async def test_killed_server_loses_no_acknowledged_session(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    load = SpawnLoad(zone)
    await load.wait_for_acknowledged(150)
    server.kill()
    await load.wait_until_done()
    assert load.statuses.keys() == {201}
    assert_one_session_per_key(launch.database_url, zone.id, list(load.acknowledged.items()))
    await assert_check_passes(servers, launch)

    restarted = await servers.start(launch)
    open_keys = sorted(load.unanswered | load.cut_short)
    responses = await send_all(restarted.url, [load.build_request(key) for key in open_keys])
    assert {response.status for response in responses} <= {200, 201}, "created now or before the kill"
    repeated = {key: response.json()["id"] for key, response in zip(open_keys, responses, strict=True)}
    acknowledged = {**load.acknowledged, **repeated}
    assert_one_session_per_key(launch.database_url, zone.id, list(acknowledged.items()))
    assert len(stored_keys(launch.database_url, zone.id)) == len(acknowledged)
    assert_zone_counts_match_rows(launch.database_url, zone.id)
    assert await restarted.stop() == 0


async def test_replicas_admit_exactly_8_when_one_is_killed(servers: Servers, postgres_url: str) -> None:
    replicas = await start_replicas(servers, postgres_url, 3)
    interrupted_rounds = 0
    for number in range(10 * ROUNDS):
        victim, survivor = replicas[number % 3], replicas[(number + 1) % 3]
        zone = await create_zone(survivor, max_concurrent=SLOTS)
        # A round counts only if the victim was killed before it had answered every request.
        interrupted_rounds += await spawn_and_kill(replicas, victim, zone, answered=1 + number % 3)
        await assert_check_passes(servers, survivor.launch)
        replicas[number % 3] = await start_replica(survivor, servers)
        if interrupted_rounds == ROUNDS:
            return
    raise AssertionError(f"only {interrupted_rounds} of {10 * ROUNDS} victims died during a round")


async def spawn_and_kill(replicas: list[ServerProcess], victim: ServerProcess, zone: FreshZone, answered: int) -> bool:
    """Spawn from all clients at once and kill one replica after some responses.

    Returns whether any client got no response.
    """
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
    child = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP, "parent_id": root})
    async with open_clients(replicas, CLIENTS) as clients:
        responses = clients.start_all(child)
        for first in itertools.islice(asyncio.as_completed(responses), answered):
            await first
        victim.kill()
        received = [response for response in await asyncio.gather(*responses) if response is not None]
    refused = {response.json()["error"] for response in received if response.status == 429}
    assert refused == {"agent_concurrency_limit_exceeded"}
    assert {response.status for response in received} <= {201, 429}
    live = DirectDatabase(zone.server.launch.database_url).execute(
        "select id from agent_sessions where zone_id = ? and parent_id is not null", zone.id
    )
    assert len(live) == SLOTS, "exactly the limit, including sessions that the victim admitted"
    assert {str(session) for [session] in live} >= {
        response.json()["id"] for response in received if response.status == 201
    }
    return len(received) < CLIENTS


async def test_frozen_replica_does_not_delay_another(servers: Servers, postgres_url: str) -> None:
    frozen, running = await start_replicas(servers, postgres_url, 2)
    zone = await create_zone(running)
    loads = [SpawnLoad(FreshZone(replica, zone.id)) for replica in (frozen, running)]
    await asyncio.gather(*(load.wait_for_acknowledged(50) for load in loads))
    frozen.freeze()
    await loads[1].wait_for_acknowledged(200)
    frozen.thaw()
    await loads[0].wait_for_acknowledged(50)
    await asyncio.gather(*(load.stop() for load in loads))
    url = postgres_url
    for load in loads:
        assert load.statuses.keys() <= {200, 201, 503}
        assert_acknowledged_are_stored(url, load)
    assert_zone_counts_match_rows(url, zone.id)


def assert_acknowledged_are_stored(url: str, load: SpawnLoad) -> None:
    sessions = {session for _, session in stored_keys(url, load.zone.id)}
    assert set(load.acknowledged.values()) <= sessions
