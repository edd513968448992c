"""The server is killed at its work: what it acknowledged is there, and the rest can be asked for again."""

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

CALLERS, ROOM = 100, 8


async def test_a_killed_server_has_lost_nothing_it_acknowledged(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    load = SpawnLoad(zone)
    await load.wait_for_acknowledged(150)
    server.kill()
    await load.wait_until_done()
    assert load.statuses.keys() == {201}
    assert_one_session_per_key(launch.database_url, zone.id, list(load.acknowledged.items()))
    await assert_check_passes(servers, launch)

    again = await servers.start(launch)
    open_keys = sorted(load.unanswered | load.cut_short)
    answers = await send_all(again.url, [load.build_request(key) for key in open_keys])
    assert {answer.status for answer in answers} <= {200, 201}, "made now, or made then"
    repeated = {key: answer.json()["id"] for key, answer in zip(open_keys, answers, strict=True)}
    acknowledged = {**load.acknowledged, **repeated}
    assert_one_session_per_key(launch.database_url, zone.id, list(acknowledged.items()))
    assert len(stored_keys(launch.database_url, zone.id)) == len(acknowledged)
    assert_zone_counts_match_rows(launch.database_url, zone.id)
    assert await again.stop() == 0


async def test_replicas_of_which_one_is_killed_admit_exactly_8(servers: Servers, postgres_url: str) -> None:
    replicas = await start_replicas(servers, postgres_url, 3)
    cut_off = 0
    for number in range(10 * ROUNDS):
        victim, survivor = replicas[number % 3], replicas[(number + 1) % 3]
        zone = await create_zone(survivor, max_concurrent=ROOM)
        # A round in which the victim had answered everybody before it died is no such round.
        cut_off += await bomb_and_kill(replicas, victim, zone, answered=1 + number % 3)
        await assert_check_passes(servers, survivor.launch)
        replicas[number % 3] = await start_replica(survivor, servers)
        if cut_off == ROUNDS:
            return
    raise AssertionError(f"only {cut_off} of {10 * ROUNDS} victims died in mid-round")


async def bomb_and_kill(replicas: list[ServerProcess], victim: ServerProcess, zone: FreshZone, answered: int) -> bool:
    """Everybody spawns at once through all of the replicas, and one is killed when so many have been answered. Whether
    somebody waited in vain."""
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
    child = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP, "parent_id": root})
    async with open_clients(replicas, CALLERS) as callers:
        answers = callers.start_all(child)
        for first in itertools.islice(asyncio.as_completed(answers), answered):
            await first
        victim.kill()
        given = [answer for answer in await asyncio.gather(*answers) if answer is not None]
    refused = {answer.json()["error"] for answer in given if answer.status == 429}
    assert refused == {"agent_concurrency_limit_exceeded"}
    assert {answer.status for answer in given} <= {201, 429}
    live = DirectDatabase(zone.server.launch.database_url).execute(
        "select id from agent_sessions where zone_id = ? and parent_id is not null", zone.id
    )
    assert len(live) == ROOM, "what the victim admitted counts, and what it did not admit left room for others"
    assert {str(session) for [session] in live} >= {a.json()["id"] for a in given if a.status == 201}
    return len(given) < CALLERS


async def test_a_frozen_replica_does_not_hold_the_others_up(servers: Servers, postgres_url: str) -> None:
    frozen, awake = await start_replicas(servers, postgres_url, 2)
    zone = await create_zone(awake)
    loads = [SpawnLoad(FreshZone(replica, zone.id)) for replica in (frozen, awake)]
    await asyncio.gather(*(load.wait_for_acknowledged(50) for load in loads))
    frozen.freeze()
    await loads[1].wait_for_acknowledged(200)
    frozen.thaw()
    await loads[0].wait_for_acknowledged(50)
    await asyncio.gather(*(load.stop() for load in loads))
    url = postgres_url
    for load in loads:
        assert load.statuses.keys() <= {200, 201, 503}
        assert_acknowledged_are_there(url, load)
    assert_zone_counts_match_rows(url, zone.id)


def assert_acknowledged_are_there(url: str, load: SpawnLoad) -> None:
    sessions = {session for _, session in stored_keys(url, load.zone.id)}
    assert set(load.acknowledged.values()) <= sessions
