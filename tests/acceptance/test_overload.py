"""Overload: a full queue refuses requests at once, and a locked zone does not delay other zones."""

from __future__ import annotations

import asyncio

from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection, RawResponse, build_request, send_all
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import APP, FreshZone, create_zone, end, lock_zone, spawn, wait_for_lock_waiter

QUEUE_MAX = 2


async def start_blocked_spawn(zone: FreshZone) -> asyncio.Task[list[RawResponse]]:
    """Start a spawn that waits for the zone's lock."""
    task = asyncio.create_task(send_all(zone.server.url, [spawn_request(zone)]))
    await wait_for_lock_waiter(zone)
    return task


def spawn_request(zone: FreshZone) -> bytes:
    return build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP})


async def test_full_queue_returns_503_with_retry_after_and_completes_admitted_requests(
    servers: Servers, postgres_url: str
) -> None:
    server = await servers.start(
        Launch(servers.directory / "data", postgres_url).with_environment(QD_QUEUE_MAX=str(QUEUE_MAX))
    )
    busy, idle = await create_zone(server), await create_zone(server)
    with lock_zone(busy):
        first = await start_blocked_spawn(busy)
        connections = [await RawConnection.open(server.url) for _ in range(10)]
        for connection in connections:
            await connection.send(spawn_request(busy))
        responses = [asyncio.create_task(connection.read_response()) for connection in connections]

        async def all_but_admitted_done() -> bool:
            # The first spawn may be in the queue or already in a waiting batch.
            return sum(response.done() for response in responses) >= len(responses) - QUEUE_MAX

        await eventually(all_but_admitted_done, "all but two have a response")
        for response in responses:
            if response.done():
                assert response.result().status == 503
                assert response.result().json()["error"] == "queue_full"
                assert int(response.result().headers["retry-after"]) > 0
        [idle_response] = await send_all(server.url, [spawn_request(idle)])
        assert idle_response.status == 201, "a zone without queued requests displaces one of the zone with the most"
    done = [*(await first), *await asyncio.gather(*responses)]
    statuses = [response.status for response in done]
    assert statuses.count(503) + statuses.count(201) == len(done)
    assert QUEUE_MAX - 1 <= statuses.count(201) <= QUEUE_MAX
    for connection in connections:
        await connection.close()


async def test_locked_zone_does_not_delay_another(postgres_server: ServerProcess) -> None:
    busy, idle = await create_zone(postgres_server), await create_zone(postgres_server)
    async with busy.client() as busy_client, idle.client() as client:
        session_id = (await spawn(busy_client, busy))["id"]
        with lock_zone(busy):
            waiting = await start_blocked_spawn(busy)
            deletion = asyncio.create_task(busy_client.delete(busy.session_path(session_id)))
            for _ in range(20):
                session = await spawn(client, idle)
                await end(client, idle, session["id"])
            assert (await client.get(idle.sessions_path)).status_code == 200
            assert (await busy_client.get(busy.sessions_path)).status_code == 200, "reads need no lock"
            assert not waiting.done()
            assert not deletion.done()
        assert [response.status for response in await waiting] == [201]
        assert (await deletion).status_code == 204


async def test_many_locked_zones_do_not_delay_another(postgres_server: ServerProcess) -> None:
    busy = [await create_zone(postgres_server) for _ in range(6)]
    idle = await create_zone(postgres_server)
    with (
        lock_zone(busy[0]),
        lock_zone(busy[1]),
        lock_zone(busy[2]),
        lock_zone(busy[3]),
        lock_zone(busy[4]),
        lock_zone(busy[5]),
    ):
        waiting = [await start_blocked_spawn(zone) for zone in busy]
        for _ in range(20):
            [response] = await send_all(postgres_server.url, [spawn_request(idle)])
            assert response.status == 201
        assert not any(task.done() for task in waiting)
    assert [response.status for task in waiting for response in await task] == [201] * len(busy)


async def test_zone_that_stays_locked_returns_503_and_writes_nothing(postgres_server: ServerProcess) -> None:
    zone = await create_zone(postgres_server)
    with lock_zone(zone):
        [response] = await send_all(postgres_server.url, [spawn_request(zone)])
    assert (response.status, response.json()["error"]) == (503, "database_unavailable")
    assert int(response.headers["retry-after"]) > 0
    async with zone.client() as client:
        assert (await client.get(zone.sessions_path)).json()["items"] == []
        await spawn(client, zone)
