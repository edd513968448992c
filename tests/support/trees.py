"""A large tree over HTTP, and those who would still spawn in it while it ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from tests.support.callers import GONE, Callers, callers_of
from tests.support.eventually import eventually
from tests.support.keel import Side
from tests.support.raw import Connection, request
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone

TEN_DEEP = (1, *[100] * 9, 99)
"""A thousand sessions: the root, and how many stand at each distance from it."""


def spawning_in(zone: FreshZone) -> Callable[[str | None], bytes]:
    """How to ask for a session of the zone under another, or for a root."""
    token = zone.token()
    return lambda parent_id: request("POST", zone.agents, token, {"application_id": APP, "parent_id": parent_id})


async def grow(callers: Callers, levels: Sequence[int], spawning: Callable[[str | None], bytes]) -> list[str]:
    """Spawns a tree level by level, parents first in what is returned; who is whose child is left to chance."""
    chance = random.Random(len(levels))
    tree: list[str] = []
    above: list[str | None] = [None]
    for number in levels:
        level = await _spawned(callers, [spawning(chance.choice(above)) for _ in range(number)])
        tree += level
        above = [*level]
    return tree


async def _spawned(callers: Callers, asks: Sequence[bytes]) -> list[str]:
    """The sessions that these asks became, each asked by whoever of the callers is free."""
    waiting, made = iter(asks), list[str]()

    async def client(connection: Connection) -> None:
        for asked in waiting:
            answer = await connection.ask(asked)
            assert answer.status == 201, answer.body
            made.append(answer.json()["id"])

    await asyncio.gather(*(client(connection) for connection in callers.connections))
    return made


class Intruders:
    """Clients that spawn under one member of a tree or another, without pause, until they are told to stop."""

    def __init__(self, zone: FreshZone, tree: Sequence[str], callers: Callers) -> None:
        self._tree = tree
        self._spawning = spawning_in(zone)
        self._stopping = False
        self.admitted: list[str] = []
        self.refusals: Counter[tuple[int, str]] = Counter()
        """By status and code."""
        self._clients = [asyncio.create_task(self._client(each)) for each in callers.connections]

    async def reach(self, admitted: int = 0, refused: int = 0) -> None:
        """Returns when so many in all have been admitted, and so many refused."""

        async def reached() -> bool:
            for client in self._clients:
                if client.done():
                    client.result()
            return len(self.admitted) >= admitted and self.refusals.total() >= refused

        await eventually(reached, f"{admitted} intruders were admitted and {refused} refused")

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._clients)

    async def _client(self, connection: Connection) -> None:
        while not self._stopping:
            try:
                answer = await connection.ask(self._spawning(random.choice(self._tree)))
            except GONE:
                return
            told = answer.json()
            if answer.status == 201:
                self.admitted.append(told["id"])
            else:
                self.refusals[answer.status, told["error"]] += 1


@contextlib.asynccontextmanager
async def intruders_in(
    zone: FreshZone, tree: Sequence[str], servers: Sequence[ServerProcess], number: int = 20
) -> AsyncIterator[Intruders]:
    async with callers_of(servers, number) as callers:
        intruders = Intruders(zone, tree, callers)
        try:
            yield intruders
        finally:
            await intruders.stop()


@dataclass(frozen=True)
class Progress:
    """How far the endings of a zone have come that took more than one transaction."""

    stamped: int
    settled: int

    @property
    def is_in_the_middle(self) -> bool:
        return 0 < self.settled < self.stamped

    @property
    def is_over(self) -> bool:
        return 0 < self.settled == self.stamped


def progress(zone: FreshZone) -> Progress:
    [[stamped, settled]] = Side(zone.server.launch.database_url).run(
        "select count(*), count(case when status = 'terminated' then 1 end) from agent_sessions"
        " where zone_id = ? and cascade_id is not null",
        zone.id,
    )
    assert isinstance(stamped, int)
    assert isinstance(settled, int)
    return Progress(stamped, settled)


async def in_the_middle(zone: FreshZone) -> None:
    """Returns when an ending of the zone has settled something, and not all."""

    async def is_so() -> bool:
        return progress(zone).is_in_the_middle

    await eventually(is_so, "a part of the tree was settled")


async def settled_within(zone: FreshZone, seconds: float) -> None:
    async def is_so() -> bool:
        return progress(zone).is_over

    await eventually(is_so, f"all of the tree was settled ({progress(zone)} so far)", limit=seconds)
