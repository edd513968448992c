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
from tests.support.client_pool import ClientPool
from tests.support.raw_http import RawConnection, build_request
from tests.support.zone import APP, FreshZone

TRIES_MAX = 3
NO_BUDGET = 1 << 62


@dataclass(frozen=True)
class SpawnBehaviour:
    """What kind of rabbit it is."""

    children: int = 2
    applications: Sequence[str] = (APP,)
    """Whose the sessions of a litter are, in turn."""
    keep_every: int = 2
    """Of so many sessions it keeps the last and ends the others at once, to ask for their places anew."""
    ends_max: int = 60
    """How many it ends before it has enough of that."""
    sessions_max: int = NO_BUDGET
    """Sessions after which it breeds no more: where nothing that is tested would bring it to a stop."""


@dataclass(frozen=True)
class ChildSlot:
    parent_id: str
    application_id: str
    tries: int = 0


class RunawaySpawner:
    def __init__(self, zone: FreshZone, behaviour: SpawnBehaviour) -> None:
        self._zone = zone
        self._behaviour = behaviour
        self._token = zone.token(LIFECYCLE, COORDINATOR_ADMIN)
        self._slots: asyncio.Queue[ChildSlot] = asyncio.Queue()
        self.admitted = 0
        self.ended = 0
        self.refusals: Counter[str] = Counter()
        """By code."""

    async def run(self, clients: ClientPool, roots: Sequence[str], limit: float = 60.0) -> None:
        """Returns when the rabbit has come to a stop. One that does not fails the test."""
        for root in roots:
            self._add_slots(root)
        client_tasks = [asyncio.create_task(self._run_client(connection)) for connection in clients.connections]
        stopped = asyncio.create_task(self._slots.join())
        try:
            # A client never ends by itself: one that has, has met what it should not.
            done, _ = await asyncio.wait([stopped, *client_tasks], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            assert stopped.done(), f"after {limit} s and {self.admitted} sessions the rabbit still runs"
        finally:
            for task in [stopped, *client_tasks]:
                task.cancel()
            await asyncio.gather(stopped, *client_tasks, return_exceptions=True)

    async def _run_client(self, connection: RawConnection) -> None:
        while True:
            slot = await self._slots.get()
            await self._spawn(connection, slot)
            self._slots.task_done()

    async def _spawn(self, connection: RawConnection, slot: ChildSlot) -> None:
        body = {"application_id": slot.application_id, "parent_id": slot.parent_id}
        response = await connection.send_and_read(build_request("POST", self._zone.sessions_path, self._token, body))
        document = response.json()
        if response.status == 429:
            self.refusals[document["error"]] += 1
            if slot.tries < TRIES_MAX:
                self._slots.put_nowait(replace(slot, tries=slot.tries + 1))
            return
        assert response.status == 201, response.body
        self.admitted += 1
        if self.ended < self._behaviour.ends_max and self.admitted % self._behaviour.keep_every:
            await self._end(connection, document["id"])
            self._slots.put_nowait(replace(slot, tries=0))
        else:
            self._add_slots(document["id"])

    async def _end(self, connection: RawConnection, session_id: str) -> None:
        self.ended += 1
        response = await connection.send_and_read(
            build_request("DELETE", self._zone.session_path(session_id), self._token)
        )
        assert response.status == 204, response.body

    def _add_slots(self, parent_id: str) -> None:
        if self.admitted < self._behaviour.sessions_max:
            owners = itertools.cycle(self._behaviour.applications)
            for application_id in itertools.islice(owners, self._behaviour.children):
                self._slots.put_nowait(ChildSlot(parent_id, application_id))
