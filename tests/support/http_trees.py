"""A large tree of sessions over HTTP, and clients that keep spawning in it while it ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from tests.support.client_pool import SERVER_GONE, ClientPool, open_clients
from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection, build_request
from tests.support.runtime import DirectDatabase
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone

TEN_LEVELS = (1, *[100] * 9, 99)
"""A thousand sessions: the number at each depth, from the root down."""


def spawn_request_builder(zone: FreshZone) -> Callable[[str | None], bytes]:
    """Return a function that builds a spawn request: a child of the given parent, or a root for None."""
    token = zone.token()
    return lambda parent_id: build_request(
        "POST", zone.sessions_path, token, {"application_id": APP, "parent_id": parent_id}
    )


async def spawn_tree(
    clients: ClientPool, levels: Sequence[int], build_request: Callable[[str | None], bytes]
) -> list[str]:
    """Spawn a tree level by level, with random parents. Return the ids, parents first."""
    rng = random.Random(len(levels))
    tree: list[str] = []
    parents: list[str | None] = [None]
    for number in levels:
        level = await _send_spawns(clients, [build_request(rng.choice(parents)) for _ in range(number)])
        tree += level
        parents = [*level]
    return tree


async def _send_spawns(clients: ClientPool, requests: Sequence[bytes]) -> list[str]:
    """Send each spawn on the next free connection. Return the ids of the sessions."""
    waiting, session_ids = iter(requests), list[str]()

    async def client(connection: RawConnection) -> None:
        for request in waiting:
            response = await connection.send_and_read(request)
            assert response.status == 201, response.body
            session_ids.append(response.json()["id"])

    await asyncio.gather(*(client(connection) for connection in clients.connections))
    return session_ids


class ConcurrentSpawners:
    """Clients that spawn under random sessions of a tree, without pause, until `stop`."""

    def __init__(self, zone: FreshZone, tree: Sequence[str], clients: ClientPool) -> None:
        self._tree = tree
        self._build_request = spawn_request_builder(zone)
        self._stopping = False
        self.admitted: list[str] = []
        self.refusals: Counter[tuple[int, str]] = Counter()
        """By status and code."""
        self._clients = [asyncio.create_task(self._run_client(connection)) for connection in clients.connections]

    async def wait_for(self, admitted: int = 0, refused: int = 0) -> None:
        """Wait until the totals of admitted and refused spawns reach these numbers."""

        async def is_reached() -> bool:
            for client in self._clients:
                if client.done():
                    client.result()
            return len(self.admitted) >= admitted and self.refusals.total() >= refused

        await eventually(is_reached, f"{admitted} spawns were admitted and {refused} refused")

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._clients)

    async def _run_client(self, connection: RawConnection) -> None:
        while not self._stopping:
            try:
                response = await connection.send_and_read(self._build_request(random.choice(self._tree)))
            except SERVER_GONE:
                return
            document = response.json()
            if response.status == 201:
                self.admitted.append(document["id"])
            else:
                self.refusals[response.status, document["error"]] += 1


@contextlib.asynccontextmanager
async def start_concurrent_spawners(
    zone: FreshZone, tree: Sequence[str], servers: Sequence[ServerProcess], count: int = 20
) -> AsyncIterator[ConcurrentSpawners]:
    async with open_clients(servers, count) as clients:
        spawners = ConcurrentSpawners(zone, tree, clients)
        try:
            yield spawners
        finally:
            await spawners.stop()


@dataclass(frozen=True)
class CascadeProgress:
    """How many sessions of a zone the cascades have marked and terminated. Small terminations have no cascade."""

    marked: int
    terminated: int

    @property
    def is_partial(self) -> bool:
        return 0 < self.terminated < self.marked

    @property
    def is_finished(self) -> bool:
        return 0 < self.terminated == self.marked


def read_progress(zone: FreshZone) -> CascadeProgress:
    [[marked, terminated]] = DirectDatabase(zone.server.launch.database_url).execute(
        "select count(*), count(case when status = 'terminated' then 1 end) from agent_sessions"
        " where zone_id = ? and cascade_id is not null",
        zone.id,
    )
    assert isinstance(marked, int)
    assert isinstance(terminated, int)
    return CascadeProgress(marked, terminated)


async def wait_until_partial(zone: FreshZone) -> None:
    """Wait until a cascade of the zone has terminated some of its sessions, but not all."""

    async def is_partial() -> bool:
        return read_progress(zone).is_partial

    await eventually(is_partial, "a part of the tree was terminated")


async def wait_until_finished(zone: FreshZone, seconds: float) -> None:
    async def is_finished() -> bool:
        return read_progress(zone).is_finished

    await eventually(is_finished, f"all of the tree was terminated ({read_progress(zone)} so far)", limit=seconds)
