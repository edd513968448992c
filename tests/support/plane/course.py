"""One run: servers, clients and disturbances, until the time is over; then rest, and the histories are whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass

from tests.support.eventually import eventually
from tests.support.keel import Side
from tests.support.plane.caller import Caller
from tests.support.plane.callers import Invoker, Lender
from tests.support.plane.client import Client
from tests.support.plane.disturber import Disturber
from tests.support.plane.fleet import Fleet
from tests.support.plane.known import Plane
from tests.support.plane.recorder import Recorder
from tests.support.plane.tenders import WIDE, Narrower, Tender
from tests.support.plane.workers import Worker
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.replicas import another
from tests.support.server import Launch, Servers
from tests.support.zone import shown

SHORT = {
    "QD_CASCADE_CHUNK": "5",
    "QD_LEASE_MS": "1500",
    "QD_TTL_SWEEP_INTERVAL_MS": "500",
    "QD_CASCADE_SWEEP_INTERVAL_MS": "500",
    "QD_DEADLINE_SWEEP_INTERVAL_MS": "500",
    "QD_DELEGATION_SWEEP_INTERVAL_MS": "500",
    "QD_SEAL_INTERVAL_MS": "1000",
}
"""So that leases run out, cascades take several transactions, and sweeps have something to do, within seconds."""
ZONES = ("narrow", "stopped")
"""The limits of the first are moved all the time; the second is stopped in the end, with everything in it."""
AT_REST = {
    "cascades": "finished_at is null",
    "agent_sessions": "terminated_at is null and expires_at <= ?",
    "agent_invocations": "status = 'running'",
}
"""What there must be none of, by table, before it is all judged."""


@dataclass(frozen=True)
class Course:
    servers: Servers
    postgres: PostgresServer
    redis: RedisServer
    seed: str
    seconds: float

    async def run(self, url: str) -> Ran:
        """On a migrated database that nobody has written to."""
        fleet = await self._started(url)
        recorder = Recorder(self.servers.directory / f"history-{self.seed}.jsonl")
        plane = Plane(self.seed, fleet, recorder, ZONES)
        disturber = Disturber(plane, self.postgres, self.redis)
        await lay_out(fleet)
        await at_work(plane, disturber.run(time.monotonic() + self.seconds))
        await come_to_rest(fleet, url)
        return Ran(self.seed, fleet, recorder, disturber)

    async def _started(self, url: str) -> Fleet:
        told = {**SHORT, "QD_REDIS_URL": self.redis.url, "QD_STREAMS_HMAC_KEY": "a key for the streams"}
        launch = Launch(self.servers.directory / f"plane-{self.seed}", url).told(**told)
        first = await self.servers.start(launch)
        return Fleet(self.servers, [first, *[await another(first, self.servers) for _ in range(2)]])


@dataclass(frozen=True)
class Ran:
    seed: str
    fleet: Fleet
    recorder: Recorder
    disturber: Disturber

    def told(self) -> str:
        """What was asked and what was done, for the report."""
        counts = sorted(self.recorder.counts.items(), key=lambda each: (each[0][0], each[0][1] or 0))
        lines = [f"{count:>7}  {op} {status} {code}" for (op, status, code), count in counts]
        return "\n".join([f"seed {self.seed}", *lines, *self.fleet.happened])


async def lay_out(fleet: Fleet) -> None:
    async with fleet[0].client() as admin:
        for zone in ZONES:
            made = await admin.put(f"/zones/{zone}", json={"quotas": WIDE})
            assert made.status_code == 201, made.text


async def at_work(plane: Plane, meanwhile: Awaitable[None]) -> None:
    """Clients of every kind, until something else is over; then each finishes what it has begun, and the history is
    whole."""
    clients = [asyncio.create_task(client.run()) for client in _clients(plane)]
    running = asyncio.ensure_future(meanwhile)
    try:
        done, _ = await asyncio.wait([running, *clients], return_when=asyncio.FIRST_COMPLETED)
        # A client never ends by itself: one that has, has met what it should not.
        for task in done:
            task.result()
    finally:
        plane.stopping = True
        if not running.done():
            running.cancel()
        await asyncio.gather(running, *clients, return_exceptions=True)
        plane.recorder.close()
    for task in clients:
        task.result()


def _clients(plane: Plane) -> list[Client]:
    found: list[Client] = []
    for zone in ZONES:

        def caller(kind: str, number: int, zone: str = zone) -> Caller:
            return Caller(f"{zone}-{kind}-{number}", zone, plane)

        found += [Tender(caller("tender", number)) for number in range(5)]
        found += [Invoker(caller("invoker", number)) for number in range(3)]
        found += [Worker(caller("worker", number)) for number in range(5)]
        found += [Lender(caller("lender", number)) for number in range(2)]
    found.append(Narrower(Caller("narrower", "narrow", plane), plane.fleet[0].admin_token))
    return found


async def come_to_rest(fleet: Fleet, url: str) -> None:
    async with fleet[0].client() as admin:
        stopped = await admin.post("/zones/stopped/stop")
        assert stopped.status_code == 200, stopped.text
        assert shown(stopped)["left"] == []
    side = Side(url)

    async def is_so() -> bool:
        now = int(time.time() * 1_000)
        return not any(side.count(table, where, *[now] * where.count("?")) for table, where in AT_REST.items())

    await eventually(is_so, "everything had come to rest", limit=60)
