"""Told to stop under load: every request that was accepted is answered, and the server leaves in good time with 0."""

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


async def test_told_to_stop_under_load_it_answers_everything_it_accepted(servers: Servers, launch: Launch) -> None:
    for _ in range(ROUNDS):
        server = await servers.start(launch)
        zone = await create_zone(server)
        load = SpawnLoad(zone, clients=32)
        await load.wait_for_acknowledged(200)
        server.terminate()
        await load.wait_until_done()
        assert await server.wait(limit=10) == 0
        assert not load.cut_short, "an answer was begun and not finished"
        assert load.statuses.keys() == {201}
        # A session that nobody was told of would be a request that was accepted and not answered.
        assert dict(stored_keys(launch.database_url, zone.id)) == load.acknowledged
        assert_zone_counts_match_rows(launch.database_url, zone.id)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_what_is_being_decided_when_it_is_told_to_stop_is_decided_and_answered(
    servers: Servers, postgres_url: str, how: signal.Signals
) -> None:
    server = await servers.start(Launch(servers.directory / "data", postgres_url))
    zone = await create_zone(server)
    asked = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP})
    connections = [await RawConnection.open(server.url) for _ in range(20)]
    with lock_zone(zone):
        answers = [asyncio.create_task(connection.send_and_read(asked)) for connection in connections]
        await wait_for_lock_waiter(zone)
        server.terminate() if how is signal.SIGTERM else server.interrupt()

        async def closed() -> bool:
            try:
                await (await RawConnection.open(server.url)).close()
            except ConnectionError:  # refused; or reset, if it came in the moment of closing
                return True
            return False

        await eventually(closed, "nobody new was let in")
        assert not any(answer.done() for answer in answers)
    done = await asyncio.gather(*answers)
    assert [answer.status for answer in done] == [201] * 20
    assert {answer.headers["connection"] for answer in done} == {"close"}
    assert await server.wait(limit=10) == 0
    assert len(stored_keys(postgres_url, zone.id)) == 20


@STARTED_ON_SQLITE
async def test_a_client_that_never_finishes_its_request_does_not_keep_the_server(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.with_environment(QD_SHUTDOWN_GRACE_MS="1000"))
    zone = await create_zone(server)
    whole = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP})
    idle, half_head, half_body = [await RawConnection.open(server.url) for _ in range(3)]
    await idle.send_and_read(build_request("GET", "/health"))
    await half_head.send(whole[:30])
    await half_body.send(whole[:-5])
    await idle.send_and_read(build_request("GET", "/health"))
    server.terminate()
    assert await server.wait(limit=10) == 0
    told = await half_body.read_response()
    assert (told.status, told.json()["error"]) == (503, "outcome_unknown")
    for connection in (idle, half_head):
        with pytest.raises(NoResponse):
            await connection.read_response()
    for connection in (idle, half_head, half_body):
        await connection.close()
    assert stored_keys(launch.database_url, zone.id) == []
    assert "Traceback" not in server.log_text


@STARTED_ON_SQLITE
async def test_a_stopped_server_leaves_its_record_and_frees_its_directory(servers: Servers, launch: Launch) -> None:
    first = await servers.start(launch)
    assert await first.stop() == 0
    assert (launch.data / "server.json").exists()
    second = await servers.start(launch)
    assert second.is_running
