"""A runaway client: every admitted session immediately requests children, without end.

Each session has a number of child slots. The next free client requests a slot. A refused slot is retried a few times
and then dropped. So the spawner stops only when every slot is filled or was refused to the last try. To test spawning
after terminations, it terminates some sessions at once and requests their slots again.
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
    children: int = 2
    applications: Sequence[str] = (APP,)
    """The owners of the children, in turn."""
    keep_every: int = 2
    """Of this many sessions it keeps the last. It terminates the others at once and requests their slots again."""
    ends_max: int = 60
    """The number of sessions it terminates in all."""
    sessions_max: int = NO_BUDGET
    """Sessions after which it requests no more children, for tests without a limit that stops it."""


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
        """Run until no slot is left. Fails if that takes longer than `limit` seconds."""
        for root in roots:
            self._add_slots(root)
        client_tasks = [asyncio.create_task(self._run_client(connection)) for connection in clients.connections]
        stopped = asyncio.create_task(self._slots.join())
        try:
            # A client never ends by itself: one that has ended failed.
            done, _ = await asyncio.wait([stopped, *client_tasks], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            assert stopped.done(), f"still spawning after {limit} s and {self.admitted} sessions"
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
