"""Two processes that want the same of a fleet: one of them gets it, and either may.

On PostgreSQL each asks a server of its own, so that only the database stands between them; on SQLite, which one server
has to itself, both ask the same.
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
    both: RacingClients

    async def post(self, path: str, **body: object) -> dict[str, Any]:
        answer = await self.client.post(f"{FLEETS}{path}", json=body)
        assert answer.status_code == 201, answer.text
        told: dict[str, Any] = answer.json()
        return told


@pytest.fixture(scope="module")
def second_server(postgres_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One more server on the shared one's database."""
    started = Servers(tmp_path_factory.mktemp("beside"))
    try:
        yield asyncio.run(add_replicas(postgres_server, started, 1))[1]
    finally:
        started.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def server_pair(request: pytest.FixtureRequest) -> tuple[ServerProcess, ServerProcess]:
    if request.param == "sqlite":
        alone: ServerProcess = request.getfixturevalue("sqlite_server")
        return alone, alone
    return request.getfixturevalue("postgres_server"), request.getfixturevalue("second_server")


@pytest.fixture
async def race(server_pair: tuple[ServerProcess, ServerProcess]) -> AsyncIterator[Race]:
    zone = await create_zone(server_pair[0])
    token = zone.token(role=Role.OWNER)
    urls = [server.url for server in server_pair]
    async with zone.client(token) as client, start_racing_clients(urls, token) as both:
        yield Race(zone, client, both)


async def test_of_ack_and_cancel_by_two_processes_one_wins_each_time_and_each_of_them_sometimes(race: Race) -> None:
    await race.post("")
    await race.post("/1/members", name="alice", description="reads")
    won: Counter[str] = Counter()
    for number in range(RACES):
        sent = await race.post("/1/messages", from_agent_id=DIRECTOR, to_agent_id=ALICE, text="hello")
        message = f"{FLEETS}/1/messages/{sent['id']}"
        acked, canceled = await race.both.race(
            (f"{message}/ack", {"agent_id": ALICE}), (f"{message}/cancel", {"agent_id": DIRECTOR}), first=number % 2
        )
        (_, winner), (status, loser) = sorted((acked, canceled), key=lambda answer: answer[0])
        assert (status, loser["error"]) == (409, "message_state_conflict")
        assert winner["status_state"] == ("completed" if winner is acked[1] else "canceled")
        stored = (await race.client.get(message)).json()
        for name in ("status_state", "status_timestamp"):
            assert stored[name] == winner[name], "what the winner was told is what is stored"
        won[winner["status_state"]] += 1
    assert min(won["completed"], won["canceled"]) > 0, f"there was no race: {won}"
    told = Counter(event["type"] for event in await read_events(race.zone))
    assert (told["message.sent"], told["message.acknowledged"], told["message.canceled"]) == (
        RACES,
        won["completed"],
        won["canceled"],
    )


async def test_of_two_monitors_that_claim_at_once_one_wins_each_time_and_the_other_is_told(race: Race) -> None:
    won: Counter[int] = Counter()
    for number in range(1, 1 + RACES):
        await race.post("")
        claim = f"{FLEETS}/{number}/monitor/claim"
        body = {"host_id": "here", "user_id": 0}
        answers = await race.both.race((claim, {**body, "pid": 100}), (claim, {**body, "pid": 200}), first=number % 2)
        (_, winner), (status, loser) = sorted(answers, key=lambda answer: answer[0])
        assert (status, loser["detail"]) == (409, f"monitor already running for fleet {number}")
        held = (await race.client.get(f"{FLEETS}/{number}/monitor")).json()
        assert held["pid"] == winner["pid"]
        won[held["pid"]] += 1
    assert min(won[100], won[200]) > 0, f"there was no race: {won}"
