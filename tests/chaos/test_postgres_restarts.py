"""PostgreSQL stops under load and restarts: clients get 503, nothing is lost or duplicated, the server recovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from quarterdeck.store.migrate import upgrade
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.spawn_load import SpawnLoad, assert_one_session_per_key
from tests.support.zone import APP, assert_problem, assert_zone_counts_match_rows, create_zone

STOPS: dict[str, Callable[[PostgresServer], None]] = {
    "fast": lambda postgres: postgres.stop("fast"),
    "immediate": lambda postgres: postgres.stop("immediate"),
    "kill": lambda postgres: postgres.kill(),
}


async def wait_until_ready(client: httpx.AsyncClient, status: int) -> None:
    async def has_status() -> bool:
        return (await client.get("/ready")).status_code == status

    await eventually(has_status, f"/ready returned {status}", limit=60)


async def start_server(servers: Servers, postgres: PostgresServer) -> ServerProcess:
    upgrade(postgres.url())
    return await servers.start(Launch(servers.directory / "data", postgres.url()))


@pytest.mark.parametrize("stop_mode", STOPS)
async def test_postgresql_restart_under_load_loses_and_duplicates_nothing(
    servers: Servers, own_postgres: PostgresServer, stop_mode: str
) -> None:
    server = await start_server(servers, own_postgres)
    zone = await create_zone(server)
    async with server.client() as client:
        load = SpawnLoad(zone)
        await load.wait_for_acknowledged(100)
        await asyncio.to_thread(STOPS[stop_mode], own_postgres)
        await wait_until_ready(client, 503)
        await asyncio.to_thread(own_postgres.start)
        await wait_until_ready(client, 200)
        await load.wait_for_acknowledged(100)
        await load.stop()
    assert load.statuses.keys() <= {200, 201, 503}
    assert not load.unanswered
    assert not load.cut_short
    url = own_postgres.url()
    assert_one_session_per_key(url, zone.id, list(load.acknowledged.items()))
    assert_zone_counts_match_rows(url, zone.id)
    assert await server.stop() == 0


async def test_routes_return_503_and_health_200_during_a_postgresql_outage(
    servers: Servers, own_postgres: PostgresServer
) -> None:
    server = await start_server(servers, own_postgres)
    zone = await create_zone(server)
    requests = [
        ("GET", "/zones"),
        ("PUT", zone.path),
        ("GET", zone.path),
        ("GET", f"{zone.path}/quotas"),
        ("PUT", f"{zone.path}/quotas"),
        ("POST", zone.sessions_path),
        ("GET", zone.sessions_path),
        ("GET", zone.session_path("x")),
        ("DELETE", zone.session_path("x")),
        ("GET", zone.session_path("x", "/children")),
        ("GET", zone.session_path("x", "/tree")),
        ("GET", f"{zone.path}/events"),
        ("GET", "/ready"),
    ]
    async with server.client() as client:
        own_postgres.stop("fast")
        body = {"application_id": APP}
        responses = await asyncio.gather(
            *(client.request(m, path, json=body if m == "POST" else {} if m == "PUT" else None) for m, path in requests)
        )
        for response in responses:
            assert_problem(response, 503, "database_unavailable")
            assert int(response.headers["retry-after"]) > 0
        for path in ("/health", "/metrics", "/openapi.json", "/docs", "/.well-known/jwks.json"):
            assert (await client.get(path)).status_code == 200
        assert await server.stop() == 0, "the server stops without its database"
