"""One run: servers, agents, tasks and faults, until every task has ended. Then the agents stop, and the histories are
complete."""

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
from tests.support.postgres import PostgresServer
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.session_plane_attack.server_pool import ServerPool
from tests.support.work_plane_attack.agent_pool import AgentPool, AgentPoolConfig
from tests.support.work_plane_attack.fault_injector import FaultInjector, FaultTargets
from tests.support.work_plane_attack.history_writer import HistoryWriter
from tests.support.work_plane_attack.task_plan import Task, plan_waves

ZONE = "works"
THRESHOLD_SECONDS = 3
SHORT_INTERVALS = {
    "QD_COORDINATOR_INTERVAL_MS": "1000",
    "QD_TASK_BACKOFF_MAX_SECONDS": "1",
    "QD_SEAL_INTERVAL_MS": "1000",
}
"""Time-outs and retries take effect within seconds."""
PORT_RANGE = range(15_000, 30_000)
"""Below the ephemeral ports: no client connection takes the port of a server that is restarted."""
OPEN_MAX = 100
"""Open tasks above which no more are created."""


@dataclass(frozen=True)
class RunScale:
    tasks: int
    agents: int
    rounds: int
    """How often each kind of fault happens."""


@dataclass(frozen=True)
class WorkPlaneRun:
    servers: Servers
    postgres: PostgresServer | None
    seed: str
    scale: RunScale

    async def run(self, url: str | None) -> RunResult:
        """Run on a migrated database without rows, with two servers on PostgreSQL or one on SQLite."""
        directory = self.servers.directory / f"work-plane-{self.seed}"
        directory.mkdir()
        servers = await self._start_servers(url, directory)
        token = await create_zone(servers[0])
        pool_config = AgentPoolConfig(
            [servers[slot].url for slot in range(len(servers))], token, ZONE, self.seed, directory, THRESHOLD_SECONDS
        )
        database = DirectDatabase(servers[0].launch.database_url)
        agents = AgentPool(pool_config, self.scale.agents)
        try:
            targets = FaultTargets(
                servers, agents, database, self.postgres, THRESHOLD_SECONDS, max(1, self.scale.tasks // 20)
            )
            faults = FaultInjector(targets, self.seed)
            history_file = directory / "creator.jsonl"
            async with replace_dead_agents(agents):
                creating = asyncio.create_task(self._create_tasks(servers, token, history_file, faults))
                await faults.run(self.scale.rounds)
                tasks = await creating
                await wait_until_all_ended(faults, len(tasks))
            agents.stop()
        except BaseException:
            # The agents' logs explain the failure.
            print(agents.logs())
            raise
        finally:
            agents.close()
        return RunResult(self.seed, servers, agents, faults, database, tasks)

    async def _start_servers(self, url: str | None, directory: Path) -> ServerPool:
        launch = Launch(directory / "server", url, port=free_port()).with_environment(**SHORT_INTERVALS)
        first = await self.servers.start(launch)
        if self.postgres is None:
            return ServerPool(self.servers, [first])
        shared = {"QD_SIGNING_KEY": str(launch.data / "signing-key.pem"), "QD_SECRET_KEYS": first.secret_keys}
        second = replace(launch, data=directory / "server-2", port=free_port()).with_environment(**shared)
        return ServerPool(self.servers, [first, await self.servers.start(second)])

    async def _create_tasks(
        self, servers: ServerPool, token: str, history_file: Path, faults: FaultInjector
    ) -> list[Task]:
        """Create all planned tasks, in waves, without exceeding OPEN_MAX open tasks."""
        history = HistoryWriter(history_file, "creator", ZONE)
        tasks: list[Task] = []
        for wave in plan_waves(self.seed, self.scale.tasks):

            async def has_capacity(created: int = len(tasks)) -> bool:
                return created - await faults.count_ended_tasks() < OPEN_MAX

            await eventually(has_capacity, "fewer than OPEN_MAX tasks are open", limit=600)
            await create_tasks(servers, token, history, wave)
            tasks += wave
        return tasks


@dataclass(frozen=True)
class RunResult:
    seed: str
    servers: ServerPool
    agents: AgentPool
    faults: FaultInjector
    database: DirectDatabase
    tasks: list[Task]

    @property
    def histories(self) -> list[Path]:
        return sorted(self.agents.histories[0].parent.glob("*.jsonl"))

    def summary(self) -> str:
        counts = [
            f"{count:>5}  {action}" for action, count in sorted((self.faults.counts + self.agents.counts).items())
        ]
        return "\n".join([f"seed {self.seed}", *counts, *self.servers.actions])


async def create_zone(server: ServerProcess) -> str:
    async with server.client() as admin:
        created = await admin.put(f"/zones/{ZONE}", json={})
        assert created.status_code == 201, created.text
    grant = Grant(zone_id=ZONE, client_id="app", subject="agents", sid="agents", scopes=(LIFECYCLE,))
    return server.issuer.mint(grant, 3 * 3_600)


@contextlib.asynccontextmanager
async def replace_dead_agents(agents: AgentPool) -> AsyncIterator[None]:
    """Replace agents that exit by themselves, as long as the context is open."""
    finished = asyncio.Event()

    async def check() -> bool:
        agents.replace_dead()
        return finished.is_set()

    watching = asyncio.create_task(eventually(check, "the run has ended", limit=7_200))
    try:
        yield
    finally:
        finished.set()
        await watching


async def create_tasks(servers: ServerPool, token: str, history: HistoryWriter, tasks: list[Task]) -> None:
    """Create tasks in one call with one idempotency key. Retry until all are created."""
    key = f"wave-{tasks[0]['id']}"
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
    attempt = 0

    async def is_created() -> bool:
        nonlocal attempt
        attempt += 1
        requests = [{"id": task["id"], "idempotency_key": f"{key}#{index}"} for index, task in enumerate(tasks)]
        entries = [history.begin("task.create", request) for request in requests]
        try:
            async with httpx.AsyncClient(timeout=5.0, headers=headers, trust_env=False, verify=False) as http:
                url = servers[attempt % len(servers)].url
                response = await http.post(f"{url}/api/v1/agent-tasks", json={"tasks": tasks})
        except httpx.HTTPError:
            for entry in entries:
                history.end(entry, None)
            return False
        items = response.json()["items"] if response.status_code == 201 else None
        for index, entry in enumerate(entries):
            item = items[index] if items else response.json()
            is_task = items is not None and "taskType" in item
            outcome = {name: item.get(name) for name in ("id", "status", "error") if name in item}
            # The first call creates the tasks. A repeated one may find them.
            history.end(
                entry,
                (201 if attempt == 1 else 200) if is_task else int(item.get("status") or response.status_code),
                outcome,
            )
        assert response.status_code in (201, 503), response.text
        return items is not None and all("taskType" in item for item in items)

    await eventually(is_created, "the tasks are created", limit=120)


async def wait_until_all_ended(faults: FaultInjector, count: int) -> None:
    async def all_ended() -> bool:
        return await faults.count_ended_tasks() == count

    await eventually(all_ended, f"all {count} tasks have ended", limit=600)


def free_port() -> int:
    rng = random.SystemRandom()
    while True:
        port = rng.choice(PORT_RANGE)
        # A port in use is skipped.
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
