"""The server is killed at its work: what it acknowledged is there, and the rest can be asked for again."""

from __future__ import annotations

import asyncio

from tests.support.keel import Side
from tests.support.load import Load, assert_one_session_a_key, stored
from tests.support.raw import Connection, CutShort, Unanswered, at_once, request
from tests.support.replicas import replicas_of
from tests.support.rounds import ROUNDS
from tests.support.server import Launch, Servers
from tests.support.zone import APP, FreshZone, assert_counts_hold, fresh_zone, spawn


async def test_a_killed_server_has_lost_nothing_it_acknowledged(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    zone = await fresh_zone(server)
    load = Load(zone)
    await load.reaches(150)
    server.kill()
    await load.over()
    assert load.statuses.keys() == {201}
    assert_one_session_a_key(launch.database_url, zone.id, list(load.acknowledged.items()))
    assert_counts_hold(launch.database_url, zone.id)

    again = await servers.start(launch)
    open_keys = sorted(load.unanswered | load.cut_short)
    answers = await at_once(again.url, [load.spawning(key) for key in open_keys])
    assert {answer.status for answer in answers} <= {200, 201}, "made now, or made then"
    repeated = {key: answer.json()["id"] for key, answer in zip(open_keys, answers, strict=True)}
    acknowledged = {**load.acknowledged, **repeated}
    assert_one_session_a_key(launch.database_url, zone.id, list(acknowledged.items()))
    assert len(stored(launch.database_url, zone.id)) == len(acknowledged)
    assert_counts_hold(launch.database_url, zone.id)
    assert await again.stop() == 0


async def test_replicas_of_which_one_is_killed_admit_exactly_8(servers: Servers, postgres_url: str) -> None:
    replicas = await replicas_of(servers, postgres_url, 3)
    for number in range(ROUNDS):
        zone = await fresh_zone(replicas[1], max_concurrent=8)
        async with zone.client() as client:
            root = (await spawn(client, zone))["id"]
        child = request("POST", zone.agents, zone.token(), {"application_id": APP, "parent_id": root})
        answers = [asyncio.create_task(ask(replicas[n % 3].url, child)) for n in range(100)]
        if number == ROUNDS - 1:
            # Whoever was first has been answered, and the others are on their way.
            await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            replicas[0].kill()
        admitted = [session for session in await asyncio.gather(*answers) if session is not None]
        side = Side(postgres_url)
        live = side.run("select id from agent_sessions where zone_id = ? and parent_id is not null", zone.id)
        assert len(live) == 8
        assert {str(session) for [session] in live} >= set(admitted)
        assert_counts_hold(postgres_url, zone.id)


async def ask(url: str, asked: bytes) -> str | None:
    """The id of the session that was admitted; None for a refusal, or where nobody answered any more."""
    try:
        connection = await Connection.open(url)
        answer = await connection.ask(asked)
    except (ConnectionError, Unanswered, CutShort):
        return None
    await connection.close()
    assert answer.status in (201, 429), answer.body
    return str(answer.json()["id"]) if answer.status == 201 else None


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
