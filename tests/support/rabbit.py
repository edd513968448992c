"""The rabbit: every session that is admitted asks at once for more under itself, for ever.

Each session has a litter of places below it. A place is asked for by whichever client is free; refused, it is asked
for again a few times, because a rabbit is stubborn, and then given up. So the rabbit comes to a stop only where every
place is taken or was refused to the last. To spawn, finish and spawn again, it ends some of the sessions at once and
asks for the same places anew.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quarterdeck.core.caller import COORDINATOR_ADMIN, LIFECYCLE
from tests.support.callers import Callers
from tests.support.raw import Connection, request
from tests.support.zone import APP, FreshZone

STUBBORN = 3
FOR_EVER = 1 << 62


@dataclass(frozen=True)
class Nature:
    """What kind of rabbit it is."""

    litter: int = 2
    applications: Sequence[str] = (APP,)
    """Whose the sessions of a litter are, in turn."""
    keeps: int = 2
    """Of so many sessions it keeps the last and ends the others at once, to ask for their places anew."""
    ends: int = 60
    """How many it ends before it has enough of that."""
    budget: int = FOR_EVER
    """Sessions after which it breeds no more: where nothing that is tested would bring it to a stop."""


@dataclass(frozen=True)
class Place:
    parent_id: str
    application_id: str
    tries: int = 0


class Rabbit:
    def __init__(self, zone: FreshZone, nature: Nature) -> None:
        self._zone = zone
        self._nature = nature
        self._token = zone.token(LIFECYCLE, COORDINATOR_ADMIN)
        self._places: asyncio.Queue[Place] = asyncio.Queue()
        self.admitted = 0
        self.ended = 0
        self.refusals: Counter[str] = Counter()
        """By code."""

    async def run(self, callers: Callers, roots: Sequence[str], limit: float = 60.0) -> None:
        """Returns when the rabbit has come to a stop. One that does not fails the test."""
        for root in roots:
            self._breed(root)
        clients = [asyncio.create_task(self._client(connection)) for connection in callers.connections]
        stopped = asyncio.create_task(self._places.join())
        try:
            # A client never ends by itself: one that has, has met what it should not.
            done, _ = await asyncio.wait([stopped, *clients], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            assert stopped.done(), f"after {limit} s and {self.admitted} sessions the rabbit still runs"
        finally:
            for task in [stopped, *clients]:
                task.cancel()
            await asyncio.gather(stopped, *clients, return_exceptions=True)

    async def _client(self, connection: Connection) -> None:
        while True:
            place = await self._places.get()
            await self._ask(connection, place)
            self._places.task_done()

    async def _ask(self, connection: Connection, place: Place) -> None:
        body = {"application_id": place.application_id, "parent_id": place.parent_id}
        answer = await connection.ask(request("POST", self._zone.agents, self._token, body))
        told = answer.json()
        if answer.status == 429:
            self.refusals[told["error"]] += 1
            if place.tries < STUBBORN:
                self._places.put_nowait(replace(place, tries=place.tries + 1))
            return
        assert answer.status == 201, answer.body
        self.admitted += 1
        if self.ended < self._nature.ends and self.admitted % self._nature.keeps:
            await self._end(connection, told["id"])
            self._places.put_nowait(replace(place, tries=0))
        else:
            self._breed(told["id"])

    async def _end(self, connection: Connection, session_id: str) -> None:
        self.ended += 1
        answer = await connection.ask(request("DELETE", self._zone.agent(session_id), self._token))
        assert answer.status == 204, answer.body

    def _breed(self, parent_id: str) -> None:
        if self.admitted < self._nature.budget:
            owners = itertools.cycle(self._nature.applications)
            for application_id in itertools.islice(owners, self._nature.litter):
                self._places.put_nowait(Place(parent_id, application_id))
