"""More to do than can be done: a full queue says so at once, and one busy zone does not stall the others."""

from __future__ import annotations

import asyncio

from tests.support.eventually import eventually
from tests.support.raw import Answer, Connection, at_once, request
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import APP, FreshZone, end, fresh_zone, held, somebody_waits, spawn

ROOM = 2


async def begin(zone: FreshZone) -> asyncio.Task[list[Answer]]:
    """A spawn that waits, because somebody outside holds the zone."""
    task = asyncio.create_task(at_once(zone.server.url, [spawning(zone)]))
    await somebody_waits(zone)
    return task


def spawning(zone: FreshZone) -> bytes:
    return request("POST", zone.agents, zone.token(), {"application_id": APP})


async def test_a_full_queue_answers_503_with_retry_after_and_keeps_whom_it_let_in(
    servers: Servers, postgres_url: str
) -> None:
    server = await servers.start(Launch(servers.directory / "data", postgres_url).told(QD_QUEUE_MAX=str(ROOM)))
    busy, calm = await fresh_zone(server), await fresh_zone(server)
    with held(busy):
        first = await begin(busy)
        connections = [await Connection.open(server.url) for _ in range(10)]
        for connection in connections:
            await connection.send(spawning(busy))
        answers = [asyncio.create_task(connection.answer()) for connection in connections]

        async def refused() -> bool:
            # Whether the first still stands in the queue, or in a batch that waits, is the lane's affair.
            return sum(answer.done() for answer in answers) >= len(answers) - ROOM

        await eventually(refused, "all but two were answered")
        for answer in answers:
            if answer.done():
                assert answer.result().status == 503
                assert answer.result().json()["error"] == "queue_full"
                assert int(answer.result().headers["retry-after"]) > 0
        [calm_answer] = await at_once(server.url, [spawning(calm)])
        assert calm_answer.status == 201, "a zone that holds nothing takes the place of the one that holds most"
    done = [*(await first), *await asyncio.gather(*answers)]
    statuses = [answer.status for answer in done]
    assert statuses.count(503) + statuses.count(201) == len(done)
    assert ROOM - 1 <= statuses.count(201) <= ROOM
    for connection in connections:
        await connection.close()


async def test_a_busy_zone_does_not_delay_another(postgres_server: ServerProcess) -> None:
    busy, calm = await fresh_zone(postgres_server), await fresh_zone(postgres_server)
    async with busy.client() as busy_client, calm.client() as client:
        doomed = (await spawn(busy_client, busy))["id"]
        with held(busy):
            waiting = await begin(busy)
            ending = asyncio.create_task(busy_client.delete(busy.agent(doomed)))
            for _ in range(20):
                session = await spawn(client, calm)
                await end(client, calm, session["id"])
            assert (await client.get(calm.agents)).status_code == 200
            assert (await busy_client.get(busy.agents)).status_code == 200, "and looking needs no lock"
            assert not waiting.done()
            assert not ending.done()
        assert [answer.status for answer in await waiting] == [201]
        assert (await ending).status_code == 204


async def test_many_busy_zones_do_not_delay_another(postgres_server: ServerProcess) -> None:
    busy = [await fresh_zone(postgres_server) for _ in range(6)]
    calm = await fresh_zone(postgres_server)
    with held(busy[0]), held(busy[1]), held(busy[2]), held(busy[3]), held(busy[4]), held(busy[5]):
        waiting = [await begin(zone) for zone in busy]
        for _ in range(20):
            [answer] = await at_once(postgres_server.url, [spawning(calm)])
            assert answer.status == 201
        assert not any(task.done() for task in waiting)
    assert [answer.status for task in waiting for answer in await task] == [201] * len(busy)


async def test_a_zone_that_stays_locked_answers_503_and_nothing_is_written(postgres_server: ServerProcess) -> None:
    zone = await fresh_zone(postgres_server)
    with held(zone):
        [answer] = await at_once(postgres_server.url, [spawning(zone)])
    assert (answer.status, answer.json()["error"]) == (503, "database_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    async with zone.client() as client:
        assert (await client.get(zone.agents)).json()["items"] == []
        await spawn(client, zone)
