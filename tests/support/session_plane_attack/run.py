"""One run: servers, clients and faults for a given time. Then all work is finished and the histories are complete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass

from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.replicas import start_replica
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, Servers
from tests.support.session_plane_attack.fault_injector import FaultInjector
from tests.support.session_plane_attack.history_writer import HistoryWriter
from tests.support.session_plane_attack.invocation_clients import Delegator, Invoker
from tests.support.session_plane_attack.random_client import RandomClient
from tests.support.session_plane_attack.recording_client import RecordingClient
from tests.support.session_plane_attack.run_state import RunState
from tests.support.session_plane_attack.server_pool import ServerPool
from tests.support.session_plane_attack.session_clients import WIDE_QUOTAS, QuotaClient, SessionClient
from tests.support.session_plane_attack.worker_clients import WorkerClient
from tests.support.zone import json_object

SHORT_INTERVALS = {
    "QD_CASCADE_CHUNK": "5",
    "QD_LEASE_MS": "1500",
    "QD_TTL_SWEEP_INTERVAL_MS": "500",
    "QD_CASCADE_SWEEP_INTERVAL_MS": "500",
    "QD_DEADLINE_SWEEP_INTERVAL_MS": "500",
    "QD_DELEGATION_SWEEP_INTERVAL_MS": "500",
    "QD_SEAL_INTERVAL_MS": "1000",
}
"""Leases expire, cascades take several transactions, and sweeps find work within seconds."""
ZONES = ("narrow", "stopped")
"""The quotas of the first change all the time. The second is stopped at the end, with all its sessions."""
UNFINISHED = {
    "cascades": "finished_at is null",
    "agent_sessions": "terminated_at is null and expires_at <= ?",
    "agent_invocations": "status = 'running'",
}
"""By table: rows that must not remain before the check."""


@dataclass(frozen=True)
class SessionPlaneRun:
    servers: Servers
    postgres: PostgresServer
    redis: RedisServer
    seed: str
    seconds: float

    async def run(self, url: str) -> RunResult:
        """Run on a migrated database without rows."""
        servers = await self._start_servers(url)
        history = HistoryWriter(self.servers.directory / f"history-{self.seed}.jsonl")
        state = RunState(self.seed, servers, history, ZONES)
        faults = FaultInjector(state, self.postgres, self.redis)
        await create_zones(servers)
        await run_clients(state, faults.run(time.monotonic() + self.seconds))
        await wait_until_idle(servers, url)
        return RunResult(self.seed, servers, history, faults)

    async def _start_servers(self, url: str) -> ServerPool:
        environment = {
            **SHORT_INTERVALS,
            "QD_REDIS_URL": self.redis.url,
            "QD_STREAMS_HMAC_KEY": "streams-hmac-key-of-tests",
        }
        launch = Launch(self.servers.directory / f"plane-{self.seed}", url).with_environment(**environment)
        first = await self.servers.start(launch)
        return ServerPool(self.servers, [first, *[await start_replica(first, self.servers) for _ in range(2)]])


@dataclass(frozen=True)
class RunResult:
    seed: str
    servers: ServerPool
    history: HistoryWriter
    faults: FaultInjector

    def summary(self) -> str:
        """The numbers of calls and the actions on servers, for the report."""
        counts = sorted(self.history.counts.items(), key=lambda entry: (entry[0][0], entry[0][1] or 0))
        lines = [f"{count:>7}  {op} {status} {code}" for (op, status, code), count in counts]
        return "\n".join([f"seed {self.seed}", *lines, *self.servers.actions])


async def create_zones(servers: ServerPool) -> None:
    async with servers[0].client() as admin:
        for zone in ZONES:
            created = await admin.put(f"/zones/{zone}", json={"quotas": WIDE_QUOTAS})
            assert created.status_code == 201, created.text


async def run_clients(state: RunState, until: Awaitable[None]) -> None:
    """Run clients of every kind until `until` is done. Then each finishes its current action, and the history is
    complete."""
    clients = [asyncio.create_task(client.run()) for client in _build_clients(state)]
    running = asyncio.ensure_future(until)
    try:
        done, _ = await asyncio.wait([running, *clients], return_when=asyncio.FIRST_COMPLETED)
        # A client never ends by itself: one that has ended failed.
        for task in done:
            task.result()
    finally:
        state.is_stopping = True
        if not running.done():
            running.cancel()
        await asyncio.gather(running, *clients, return_exceptions=True)
        state.history.close()
    for task in clients:
        task.result()


def _build_clients(state: RunState) -> list[RandomClient]:
    clients: list[RandomClient] = []
    for zone in ZONES:

        def caller(kind: str, number: int, zone: str = zone) -> RecordingClient:
            return RecordingClient(f"{zone}-{kind}-{number}", zone, state)

        clients += [SessionClient(caller("session", number)) for number in range(5)]
        clients += [Invoker(caller("invoker", number)) for number in range(3)]
        clients += [WorkerClient(caller("worker", number)) for number in range(5)]
        clients += [Delegator(caller("delegator", number)) for number in range(2)]
    clients.append(QuotaClient(RecordingClient("quotas", "narrow", state), state.servers[0].admin_token))
    return clients


async def wait_until_idle(servers: ServerPool, url: str) -> None:
    async with servers[0].client() as admin:
        stopped = await admin.post("/zones/stopped/stop")
        assert stopped.status_code == 200, stopped.text
        assert json_object(stopped)["left"] == []
    database = DirectDatabase(url)

    async def is_idle() -> bool:
        now = int(time.time() * 1_000)
        return not any(database.count(table, where, *[now] * where.count("?")) for table, where in UNFINISHED.items())

    await eventually(is_idle, "nothing is unfinished", limit=60)
