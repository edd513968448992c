"""Retention of events, in two steps, so that nobody can pass off a deletion as retention.

First the floor of the log is raised to the end of a whole seal that is older than EVENT_RETENTION_DAYS: from then on
readers below it are told to begin anew. The next seal attests the floor under its signature. Only then are the events
at or below the attested floor deleted, lowest first, a few at a time. Seals are kept: they say what was there.

One process at a time, by a lease; every write is fenced. A crash between any two steps leaves a log that proves, and
the next pass goes on from there. A sealer that has stopped stops retention, too: nothing is deleted that nobody
attests. So does a sink that has not told what would go: what it still needs is not due.
"""

from __future__ import annotations

import asyncio

from quarterdeck.core.audit_seal import End, floor_for
from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import new_id
from quarterdeck.engine import log_sealer
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.log_sealer import LogState
from quarterdeck.engine.queries import Q
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sinks.retention import needed
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import decode

EVENT_RETENTION = "event-retention"
ENDS_MAX = 1_000
"""Seals that one pass looks at: about a million events."""
EVENTS_MAX = 50_000
"""Events that one pass deletes."""
PIECE = 250
"""Events deleted in one transaction: a lane of the same SQLite file waits for no more than these."""
LEASE_MS = 5_000


class EventRetention:
    def __init__(self, engine: Engine, settings: LogSettings) -> None:
        self._engine = engine
        self._settings = settings
        self.lease = Lease(engine, EVENT_RETENTION, new_id(), LEASE_MS)

    def sweep(self) -> Sweep:
        every = self._settings.retention_cleanup_interval_ms
        return Sweep(EVENT_RETENTION, every, EVENTS_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        """Raises the floor if more is due, and deletes at most so many events below the attested one."""
        known = await self._engine.read(log_sealer.state)
        floor = await self._engine.read(lambda tx: self._due(tx, known))
        if floor is not None and (fence := await self._fence()):
            await self._engine.transact(lambda tx: self._raise(tx, fence))
        return await self._forget(known.attested, batch)

    async def _due(self, tx: Tx, known: LogState) -> int | None:
        """The floor to raise to, if there is a higher one than now."""
        if known.newest is None:
            return None
        [rows] = await tx.read(Q.seal_ends(above=known.bounds.floor, limit=ENDS_MAX))
        cutoff = tx.now - round(self._settings.event_retention_days * DAY)
        return floor_for(decode(rows, End), known.newest, cutoff, needed=await needed(tx))

    async def _raise(self, tx: Tx, fence: Fence) -> None:
        await fence.check(tx)
        floor = await self._due(tx, await log_sealer.state(tx))
        if floor is not None:
            tx.write(Q.log_raise_floor(floor=floor))

    async def _forget(self, attested: int, batch: int) -> int:
        gone = 0
        while gone < batch and (some := await self._forget_some(attested)):
            gone += some
            await asyncio.sleep(0)
        return gone

    async def _forget_some(self, attested: int) -> int:
        lowest = await self._engine.read(_lowest)
        if lowest is None or lowest > attested or (fence := await self._fence()) is None:
            return 0
        upto = min(lowest + PIECE - 1, attested)

        async def delete(tx: Tx) -> None:
            await fence.check(tx)
            tx.write(Q.log_forget(upto=upto))

        await self._engine.transact(delete)
        return upto - lowest + 1

    async def _fence(self) -> Fence | None:
        return self.lease.fence() or await self.lease.hold()


async def _lowest(tx: Tx) -> int | None:
    [rows] = await tx.read(Q.log_lowest())
    return int(str(rows[0][0])) if rows else None
