"""More to do than can be done: a full queue says so at once, and one busy zone does not stall the others."""

from __future__ import annotations

import asyncio

from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection, RawResponse, build_request, send_all
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import APP, FreshZone, create_zone, end, lock_zone, spawn, wait_for_lock_waiter

ROOM = 2


async def begin(zone: FreshZone) -> asyncio.Task[list[RawResponse]]:
    """A spawn that waits, because somebody outside holds the zone."""
    task = asyncio.create_task(send_all(zone.server.url, [spawning(zone)]))
    await wait_for_lock_waiter(zone)
    return task


def spawning(zone: FreshZone) -> bytes:
    return build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP})


async def test_a_full_queue_answers_503_with_retry_after_and_keeps_whom_it_let_in(
    servers: Servers, postgres_url: str
) -> None:
    server = await servers.start(
        Launch(servers.directory / "data", postgres_url).with_environment(QD_QUEUE_MAX=str(ROOM))
    )
    busy, calm = await create_zone(server), await create_zone(server)
    with lock_zone(busy):
        first = await begin(busy)
        connections = [await RawConnection.open(server.url) for _ in range(10)]
        for connection in connections:
            await connection.send(spawning(busy))
        answers = [asyncio.create_task(connection.read_response()) for connection in connections]

        async def refused() -> bool:
            # Whether the first still stands in the queue, or in a batch that waits, is the lane's affair.
            return sum(answer.done() for answer in answers) >= len(answers) - ROOM

        await eventually(refused, "all but two were answered")
        for answer in answers:
            if answer.done():
                assert answer.result().status == 503
                assert answer.result().json()["error"] == "queue_full"
                assert int(answer.result().headers["retry-after"]) > 0
        [calm_answer] = await send_all(server.url, [spawning(calm)])
        assert calm_answer.status == 201, "a zone that holds nothing takes the place of the one that holds most"
    done = [*(await first), *await asyncio.gather(*answers)]
    statuses = [answer.status for answer in done]
    assert statuses.count(503) + statuses.count(201) == len(done)
    assert ROOM - 1 <= statuses.count(201) <= ROOM
    for connection in connections:
        await connection.close()


async def test_a_busy_zone_does_not_delay_another(postgres_server: ServerProcess) -> None:
    busy, calm = await create_zone(postgres_server), await create_zone(postgres_server)
    async with busy.client() as busy_client, calm.client() as client:
        doomed = (await spawn(busy_client, busy))["id"]
        with lock_zone(busy):
            waiting = await begin(busy)
            ending = asyncio.create_task(busy_client.delete(busy.session_path(doomed)))
            for _ in range(20):
                session = await spawn(client, calm)
                await end(client, calm, session["id"])
            assert (await client.get(calm.sessions_path)).status_code == 200
            assert (await busy_client.get(busy.sessions_path)).status_code == 200, "and looking needs no lock"
            assert not waiting.done()
            assert not ending.done()
        assert [answer.status for answer in await waiting] == [201]
        assert (await ending).status_code == 204


async def test_many_busy_zones_do_not_delay_another(postgres_server: ServerProcess) -> None:
    busy = [await create_zone(postgres_server) for _ in range(6)]
    calm = await create_zone(postgres_server)
    with (
        lock_zone(busy[0]),
        lock_zone(busy[1]),
        lock_zone(busy[2]),
        lock_zone(busy[3]),
        lock_zone(busy[4]),
        lock_zone(busy[5]),
    ):
        waiting = [await begin(zone) for zone in busy]
        for _ in range(20):
            [answer] = await send_all(postgres_server.url, [spawning(calm)])
            assert answer.status == 201
        assert not any(task.done() for task in waiting)
    assert [answer.status for task in waiting for answer in await task] == [201] * len(busy)


async def test_a_zone_that_stays_locked_answers_503_and_nothing_is_written(postgres_server: ServerProcess) -> None:
    zone = await create_zone(postgres_server)
    with lock_zone(zone):
        [answer] = await send_all(postgres_server.url, [spawning(zone)])
    assert (answer.status, answer.json()["error"]) == (503, "database_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    async with zone.client() as client:
        assert (await client.get(zone.sessions_path)).json()["items"] == []
        await spawn(client, zone)
