"""Shutdown under load: every accepted request is answered, and the server exits with 0 in time."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.support.engine_marks import STARTED_ON_SQLITE
from tests.support.eventually import eventually
from tests.support.raw_http import NoResponse, RawConnection, build_request
from tests.support.rounds import ROUNDS
from tests.support.server import Launch, Servers
from tests.support.spawn_load import SpawnLoad, stored_keys
from tests.support.zone import APP, assert_zone_counts_match_rows, create_zone, lock_zone, wait_for_lock_waiter


async def test_sigterm_under_load_answers_every_accepted_request(servers: Servers, launch: Launch) -> None:
    for _ in range(ROUNDS):
        server = await servers.start(launch)
        zone = await create_zone(server)
        load = SpawnLoad(zone, clients=32)
        await load.wait_for_acknowledged(200)
        server.terminate()
        await load.wait_until_done()
        assert await server.wait(limit=10) == 0
        assert not load.cut_short, "a response was incomplete"
        assert load.statuses.keys() == {201}
        # A session without an acknowledged response would be an accepted request that was not answered.
        assert dict(stored_keys(launch.database_url, zone.id)) == load.acknowledged
        assert_zone_counts_match_rows(launch.database_url, zone.id)


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
async def test_requests_in_flight_at_a_stop_signal_are_completed(
    servers: Servers, postgres_url: str, stop_signal: signal.Signals
) -> None:
    server = await servers.start(Launch(servers.directory / "data", postgres_url))
    zone = await create_zone(server)
    request = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP})
    connections = [await RawConnection.open(server.url) for _ in range(20)]
    with lock_zone(zone):
        responses = [asyncio.create_task(connection.send_and_read(request)) for connection in connections]
        await wait_for_lock_waiter(zone)
        server.terminate() if stop_signal is signal.SIGTERM else server.interrupt()

        async def is_closed() -> bool:
            try:
                await (await RawConnection.open(server.url)).close()
            except ConnectionError:  # refused, or reset while the socket closes
                return True
            return False

        await eventually(is_closed, "new connections were refused")
        assert not any(response.done() for response in responses)
    done = await asyncio.gather(*responses)
    assert [response.status for response in done] == [201] * 20
    assert {response.headers["connection"] for response in done} == {"close"}
    assert await server.wait(limit=10) == 0
    assert len(stored_keys(postgres_url, zone.id)) == 20


@STARTED_ON_SQLITE
async def test_incomplete_request_does_not_delay_shutdown(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_SHUTDOWN_GRACE_MS="1000"))
    zone = await create_zone(server)
    request = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP})
    idle, half_head, half_body = [await RawConnection.open(server.url) for _ in range(3)]
    await idle.send_and_read(build_request("GET", "/health"))
    await half_head.send(request[:30])
    await half_body.send(request[:-5])
    await idle.send_and_read(build_request("GET", "/health"))
    server.terminate()
    assert await server.wait(limit=10) == 0
    response = await half_body.read_response()
    assert (response.status, response.json()["error"]) == (503, "outcome_unknown")
    for connection in (idle, half_head):
        with pytest.raises(NoResponse):
            await connection.read_response()
    for connection in (idle, half_head, half_body):
        await connection.close()
    assert stored_keys(launch.database_url, zone.id) == []
    assert "Traceback" not in server.log_text


@STARTED_ON_SQLITE
async def test_stopped_server_keeps_server_json_and_releases_its_directory(servers: Servers, launch: Launch) -> None:
    first = await servers.start(launch)
    assert await first.stop() == 0
    assert (launch.data / "server.json").exists()
    second = await servers.start(launch)
    assert second.is_running
