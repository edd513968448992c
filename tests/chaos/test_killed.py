"""The server is killed at its work: what it acknowledged is there, and the rest can be asked for again."""

from __future__ import annotations

import asyncio
import itertools

from tests.support.callers import callers_of
from tests.support.checking import assert_check_finds_nothing
from tests.support.keel import Side
from tests.support.load import Load, assert_one_session_a_key, stored
from tests.support.raw import at_once, request
from tests.support.replicas import another, replicas_of
from tests.support.rounds import ROUNDS
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import APP, FreshZone, assert_counts_hold, fresh_zone, spawn

CALLERS, ROOM = 100, 8


async def test_a_killed_server_has_lost_nothing_it_acknowledged(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    zone = await fresh_zone(server)
    load = Load(zone)
    await load.reaches(150)
    server.kill()
    await load.over()
    assert load.statuses.keys() == {201}
    assert_one_session_a_key(launch.database_url, zone.id, list(load.acknowledged.items()))
    await assert_check_finds_nothing(servers, launch)

    again = await servers.start(launch)
    open_keys = sorted(load.unanswered | load.cut_short)
    answers = await at_once(again.url, [load.asking(key) for key in open_keys])
    assert {answer.status for answer in answers} <= {200, 201}, "made now, or made then"
    repeated = {key: answer.json()["id"] for key, answer in zip(open_keys, answers, strict=True)}
    acknowledged = {**load.acknowledged, **repeated}
    assert_one_session_a_key(launch.database_url, zone.id, list(acknowledged.items()))
    assert len(stored(launch.database_url, zone.id)) == len(acknowledged)
    assert_counts_hold(launch.database_url, zone.id)
    assert await again.stop() == 0


async def test_replicas_of_which_one_is_killed_admit_exactly_8(servers: Servers, postgres_url: str) -> None:
    replicas = await replicas_of(servers, postgres_url, 3)
    cut_off = 0
    for number in range(10 * ROUNDS):
        victim, survivor = replicas[number % 3], replicas[(number + 1) % 3]
        zone = await fresh_zone(survivor, max_concurrent=ROOM)
        # A round in which the victim had answered everybody before it died is no such round.
        cut_off += await bomb_and_kill(replicas, victim, zone, answered=1 + number % 3)
        await assert_check_finds_nothing(servers, survivor.launch)
        replicas[number % 3] = await another(survivor, servers)
        if cut_off == ROUNDS:
            return
    raise AssertionError(f"only {cut_off} of {10 * ROUNDS} victims died in mid-round")


async def bomb_and_kill(replicas: list[ServerProcess], victim: ServerProcess, zone: FreshZone, answered: int) -> bool:
    """Everybody spawns at once through all of the replicas, and one is killed when so many have been answered. Whether
    somebody waited in vain."""
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
    child = request("POST", zone.agents, zone.token(), {"application_id": APP, "parent_id": root})
    async with callers_of(replicas, CALLERS) as callers:
        answers = callers.begin(child)
        for first in itertools.islice(asyncio.as_completed(answers), answered):
            await first
        victim.kill()
        given = [answer for answer in await asyncio.gather(*answers) if answer is not None]
    refused = {answer.json()["error"] for answer in given if answer.status == 429}
    assert refused == {"agent_concurrency_limit_exceeded"}
    assert {answer.status for answer in given} <= {201, 429}
    live = Side(zone.server.launch.database_url).run(
        "select id from agent_sessions where zone_id = ? and parent_id is not null", zone.id
    )
    assert len(live) == ROOM, "what the victim admitted counts, and what it did not admit left room for others"
    assert {str(session) for [session] in live} >= {a.json()["id"] for a in given if a.status == 201}
    return len(given) < CALLERS


async def test_a_frozen_replica_does_not_hold_the_others_up(servers: Servers, postgres_url: str) -> None:
    frozen, awake = await replicas_of(servers, postgres_url, 2)
    zone = await fresh_zone(awake)
    loads = [Load(FreshZone(replica, zone.id)) for replica in (frozen, awake)]
    await asyncio.gather(*(load.reaches(50) for load in loads))
    frozen.freeze()
    await loads[1].reaches(200)
    frozen.thaw()
    await loads[0].reaches(50)
    await asyncio.gather(*(load.stop() for load in loads))
    url = postgres_url
    for load in loads:
        assert load.statuses.keys() <= {200, 201, 503}
        assert_acknowledged_are_there(url, load)
    assert_counts_hold(url, zone.id)


def assert_acknowledged_are_there(url: str, load: Load) -> None:
    sessions = {session for _, session in stored(url, load.zone.id)}
    assert set(load.acknowledged.values()) <= sessions
