"""One run: servers, agents, tasks and disturbances, until every task is over; then the agents go home, and the
histories are whole."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.http.auth import Grant
from tests.support.eventually import eventually
from tests.support.keel import Side
from tests.support.labouring.crew import Crew, Place
from tests.support.labouring.disturber import Disturber, Stage
from tests.support.labouring.ledger import Ledger
from tests.support.labouring.plan import Task, waves
from tests.support.plane.fleet import Fleet
from tests.support.postgres import PostgresServer
from tests.support.server import Launch, ServerProcess, Servers

ZONE = "works"
THRESHOLD_SECONDS = 3
SHORT = {"QD_COORDINATOR_INTERVAL_MS": "1000", "QD_TASK_BACKOFF_MAX_SECONDS": "1", "QD_SEAL_INTERVAL_MS": "1000"}
"""So that what must be waited for comes within seconds."""
PORTS = range(15_000, 30_000)
"""Below those from which the machine draws for whoever connects: a server that is away finds its port free again."""
OPEN_MAX = 100
"""Tasks that may be open before more are made."""


@dataclass(frozen=True)
class Scale:
    tasks: int
    agents: int
    rounds: int
    """How often everything happens that can be done to them."""


@dataclass(frozen=True)
class Course:
    servers: Servers
    postgres: PostgresServer | None
    seed: str
    scale: Scale

    async def run(self, url: str | None) -> Ran:
        """On a migrated database that nobody has written to: two servers on PostgreSQL, one on SQLite."""
        directory = self.servers.directory / f"labour-{self.seed}"
        directory.mkdir()
        fleet = await self._started(url, directory)
        token = await laid_out(fleet[0])
        place = Place(
            [fleet[slot].url for slot in range(len(fleet))], token, ZONE, self.seed, directory, THRESHOLD_SECONDS
        )
        side = Side(fleet[0].launch.database_url)
        crew = Crew(place, self.scale.agents)
        try:
            stage = Stage(fleet, crew, side, self.postgres, THRESHOLD_SECONDS, max(1, self.scale.tasks // 20))
            disturber = Disturber(stage, self.seed)
            history = directory / "creator.jsonl"
            async with replacing(crew):
                making = asyncio.create_task(self._make(fleet, token, history, disturber))
                await disturber.run(self.scale.rounds)
                made = await making
                await everything_over(disturber, len(made))
            crew.stop()
        except BaseException:
            # Whatever ended it, what the workers said is what explains it.
            print(crew.logs())
            raise
        finally:
            crew.close()
        return Ran(self.seed, fleet, crew, disturber, side, made)

    async def _started(self, url: str | None, directory: Path) -> Fleet:
        launch = Launch(directory / "server", url, port=free_port()).told(**SHORT)
        first = await self.servers.start(launch)
        if self.postgres is None:
            return Fleet(self.servers, [first])
        shared = {"QD_SIGNING_KEY": str(launch.data / "signing-key.pem"), "QD_SECRET_KEYS": first.secret_keys}
        beside = replace(launch, data=directory / "server-2", port=free_port()).told(**shared)
        return Fleet(self.servers, [first, await self.servers.start(beside)])

    async def _make(self, fleet: Fleet, token: str, history: Path, disturber: Disturber) -> list[Task]:
        """Everything that is planned, as fast as it is done; asked for until it is known to be there."""
        ledger = Ledger(history, "creator", ZONE)
        made: list[Task] = []
        for wave in waves(self.seed, self.scale.tasks):

            async def is_room(so_far: int = len(made)) -> bool:
                return so_far - await disturber.ended() < OPEN_MAX

            await eventually(is_room, "there was room for more tasks", limit=600)
            await create(fleet, token, ledger, wave)
            made += wave
        return made


@dataclass(frozen=True)
class Ran:
    seed: str
    fleet: Fleet
    crew: Crew
    disturber: Disturber
    side: Side
    tasks: list[Task]

    @property
    def histories(self) -> list[Path]:
        return sorted(self.crew.histories[0].parent.glob("*.jsonl"))

    def told(self) -> str:
        done = [f"{count:>5}  {what}" for what, count in sorted((self.disturber.times + self.crew.happened).items())]
        return "\n".join([f"seed {self.seed}", *done, *self.fleet.happened])


async def laid_out(server: ServerProcess) -> str:
    async with server.client() as admin:
        made = await admin.put(f"/zones/{ZONE}", json={})
        assert made.status_code == 201, made.text
    grant = Grant(zone_id=ZONE, client_id="app", subject="crew", sid="crew", scopes=(LIFECYCLE,))
    return server.issuer.mint(grant, 3 * 3_600)


@contextlib.asynccontextmanager
async def replacing(crew: Crew) -> AsyncIterator[None]:
    """Somebody sees to it that whoever fell by itself is followed by another."""
    over = asyncio.Event()

    async def look() -> bool:
        crew.replace_the_fallen()
        return over.is_set()

    looking = asyncio.create_task(eventually(look, "the run was over", limit=7_200))
    try:
        yield
    finally:
        over.set()
        await looking


async def create(fleet: Fleet, token: str, ledger: Ledger, tasks: list[Task]) -> None:
    """In one call, under one key: whatever became of it is found by asking again."""
    key = f"wave-{tasks[0]['id']}"
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
    number = 0

    async def is_made() -> bool:
        nonlocal number
        number += 1
        asked = [{"id": task["id"], "idempotency_key": f"{key}#{place}"} for place, task in enumerate(tasks)]
        entries = [ledger.begin("task.create", one) for one in asked]
        try:
            async with httpx.AsyncClient(timeout=5.0, headers=headers, trust_env=False, verify=False) as http:
                url = fleet[number % len(fleet)].url
                answer = await http.post(f"{url}/api/v1/agent-tasks", json={"tasks": tasks})
        except httpx.HTTPError:
            for entry in entries:
                ledger.end(entry, None)
            return False
        items = answer.json()["items"] if answer.status_code == 201 else None
        for place, entry in enumerate(entries):
            item = items[place] if items else answer.json()
            is_task = items is not None and "taskType" in item
            told = {name: item.get(name) for name in ("id", "status", "error") if name in item}
            # The first time nobody can have been there before.
            ledger.end(
                entry, (201 if number == 1 else 200) if is_task else int(item.get("status") or answer.status_code), told
            )
        assert answer.status_code in (201, 503), answer.text
        return items is not None and all("taskType" in item for item in items)

    await eventually(is_made, "the tasks were made", limit=120)


async def everything_over(disturber: Disturber, number: int) -> None:
    async def is_so() -> bool:
        return await disturber.ended() == number

    await eventually(is_so, f"all of {number} tasks were over", limit=600)


def free_port() -> int:
    chance = random.SystemRandom()
    while True:
        port = chance.choice(PORTS)
        # One that somebody has is passed over.
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
