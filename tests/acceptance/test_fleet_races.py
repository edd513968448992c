"""Concurrent conflicting requests on a fleet: exactly one succeeds, and each of the two sometimes does.

On PostgreSQL each client uses its own server, so that only the database decides. SQLite has one server for both.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from quarterdeck.core.caller import Role
from tests.support.racing_clients import RacingClients, start_racing_clients
from tests.support.replicas import add_replicas
from tests.support.rounds import ROUNDS
from tests.support.server import ServerProcess, Servers
from tests.support.zone import FreshZone, create_zone, read_events

FLEETS = "/api/v1/fleets"
DIRECTOR, ALICE = 1, 3
RACES = max(20, 5 * ROUNDS)


@dataclass(frozen=True)
class Race:
    zone: FreshZone
    client: httpx.AsyncClient
    clients: RacingClients

    async def post(self, path: str, **body: object) -> dict[str, Any]:
        response = await self.client.post(f"{FLEETS}{path}", json=body)
        assert response.status_code == 201, response.text
        content: dict[str, Any] = response.json()
        return content


@pytest.fixture(scope="module")
def second_server(postgres_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Another server on the database of `postgres_server`."""
    servers = Servers(tmp_path_factory.mktemp("second"))
    try:
        yield asyncio.run(add_replicas(postgres_server, servers, 1))[1]
    finally:
        servers.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def server_pair(request: pytest.FixtureRequest) -> tuple[ServerProcess, ServerProcess]:
    if request.param == "sqlite":
        only_server: ServerProcess = request.getfixturevalue("sqlite_server")
        return only_server, only_server
    return request.getfixturevalue("postgres_server"), request.getfixturevalue("second_server")


@pytest.fixture
async def race(server_pair: tuple[ServerProcess, ServerProcess]) -> AsyncIterator[Race]:
    zone = await create_zone(server_pair[0])
    token = zone.token(role=Role.OWNER)
    urls = [server.url for server in server_pair]
    async with zone.client(token) as client, start_racing_clients(urls, token) as clients:
        yield Race(zone, client, clients)


async def test_exactly_one_of_concurrent_ack_and_cancel_succeeds(race: Race) -> None:
    await race.post("")
    await race.post("/1/members", name="alice", description="reads")
    wins: Counter[str] = Counter()
    for number in range(RACES):
        sent = await race.post("/1/messages", from_agent_id=DIRECTOR, to_agent_id=ALICE, text="hello")
        message = f"{FLEETS}/1/messages/{sent['id']}"
        acked, canceled = await race.clients.race(
            (f"{message}/ack", {"agent_id": ALICE}), (f"{message}/cancel", {"agent_id": DIRECTOR}), first=number % 2
        )
        (_, winner), (status, loser) = sorted((acked, canceled), key=lambda response: response[0])
        assert (status, loser["error"]) == (409, "message_state_conflict")
        assert winner["status_state"] == ("completed" if winner is acked[1] else "canceled")
        stored = (await race.client.get(message)).json()
        for name in ("status_state", "status_timestamp"):
            assert stored[name] == winner[name], "the winner's response is the stored state"
        wins[winner["status_state"]] += 1
    assert min(wins["completed"], wins["canceled"]) > 0, f"there was no race: {wins}"
    event_counts = Counter(event["type"] for event in await read_events(race.zone))
    assert (event_counts["message.sent"], event_counts["message.acknowledged"], event_counts["message.canceled"]) == (
        RACES,
        wins["completed"],
        wins["canceled"],
    )


async def test_exactly_one_of_two_concurrent_monitor_claims_succeeds(race: Race) -> None:
    wins: Counter[int] = Counter()
    for number in range(1, 1 + RACES):
        await race.post("")
        claim = f"{FLEETS}/{number}/monitor/claim"
        body = {"host_id": "host-1", "user_id": 0}
        responses = await race.clients.race(
            (claim, {**body, "pid": 100}), (claim, {**body, "pid": 200}), first=number % 2
        )
        (_, winner), (status, loser) = sorted(responses, key=lambda response: response[0])
        assert (status, loser["detail"]) == (409, f"monitor already running for fleet {number}")
        monitor = (await race.client.get(f"{FLEETS}/{number}/monitor")).json()
        assert monitor["pid"] == winner["pid"]
        wins[monitor["pid"]] += 1
    assert min(wins[100], wins[200]) > 0, f"there was no race: {wins}"
