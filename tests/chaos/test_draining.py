"""Told to stop under load: every request that was accepted is answered, and the server leaves in good time with 0."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.support.engines import STARTED_ON_SQLITE
from tests.support.eventually import eventually
from tests.support.load import Load, stored
from tests.support.raw import Connection, Unanswered, request
from tests.support.rounds import ROUNDS
from tests.support.server import Launch, Servers
from tests.support.zone import APP, assert_counts_hold, fresh_zone, held, somebody_waits


async def test_told_to_stop_under_load_it_answers_everything_it_accepted(servers: Servers, launch: Launch) -> None:
    for _ in range(ROUNDS):
        server = await servers.start(launch)
        zone = await fresh_zone(server)
        load = Load(zone, clients=32)
        await load.reaches(200)
        server.terminate()
        await load.over()
        assert await server.wait(limit=10) == 0
        assert not load.cut_short, "an answer was begun and not finished"
        assert load.statuses.keys() == {201}
        # A session that nobody was told of would be a request that was accepted and not answered.
        assert dict(stored(launch.database_url, zone.id)) == load.acknowledged
        assert_counts_hold(launch.database_url, zone.id)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_what_is_being_decided_when_it_is_told_to_stop_is_decided_and_answered(
    servers: Servers, postgres_url: str, how: signal.Signals
) -> None:
    server = await servers.start(Launch(servers.directory / "data", postgres_url))
    zone = await fresh_zone(server)
    asked = request("POST", zone.agents, zone.token(), {"application_id": APP})
    connections = [await Connection.open(server.url) for _ in range(20)]
    with held(zone):
        answers = [asyncio.create_task(connection.ask(asked)) for connection in connections]
        await somebody_waits(zone)
        server.terminate() if how is signal.SIGTERM else server.interrupt()

        async def closed() -> bool:
            try:
                await (await Connection.open(server.url)).close()
            except ConnectionError:  # refused; or reset, if it came in the moment of closing
                return True
            return False

        await eventually(closed, "nobody new was let in")
        assert not any(answer.done() for answer in answers)
    done = await asyncio.gather(*answers)
    assert [answer.status for answer in done] == [201] * 20
    assert {answer.headers["connection"] for answer in done} == {"close"}
    assert await server.wait(limit=10) == 0
    assert len(stored(postgres_url, zone.id)) == 20


@STARTED_ON_SQLITE
async def test_a_client_that_never_finishes_its_request_does_not_keep_the_server(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.told(QD_SHUTDOWN_GRACE_MS="1000"))
    zone = await fresh_zone(server)
    whole = request("POST", zone.agents, zone.token(), {"application_id": APP})
    idle, half_head, half_body = [await Connection.open(server.url) for _ in range(3)]
    await idle.ask(request("GET", "/health"))
    await half_head.send(whole[:30])
    await half_body.send(whole[:-5])
    await idle.ask(request("GET", "/health"))
    server.terminate()
    assert await server.wait(limit=10) == 0
    told = await half_body.answer()
    assert (told.status, told.json()["error"]) == (503, "outcome_unknown")
    for connection in (idle, half_head):
        with pytest.raises(Unanswered):
            await connection.answer()
    for connection in (idle, half_head, half_body):
        await connection.close()
    assert stored(launch.database_url, zone.id) == []
    assert "Traceback" not in server.log_text


@STARTED_ON_SQLITE
async def test_a_stopped_server_leaves_its_record_and_frees_its_directory(servers: Servers, launch: Launch) -> None:
    first = await servers.start(launch)
    assert await first.stop() == 0
    assert (launch.data / "server.json").exists()
    second = await servers.start(launch)
    assert second.running
