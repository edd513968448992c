"""Deletes old events, in two steps, so that tampering cannot be mistaken for retention.

First the floor of the log is raised to the end of a seal that is older than EVENT_RETENTION_DAYS. From then on, readers
whose position is below the floor must start again. The next seal attests the floor with its signature. Only then are
the events up to the attested floor deleted, lowest position first, in small chunks. Seals are kept: they prove which
events existed.

A lease ensures that only one process at a time does this, and every write is fenced. A crash between any two steps
leaves a log that verifies, and the next pass continues from there. If sealing stops, retention stops, too: nothing is
deleted without a seal that attests the floor. Events that a sink still has to deliver are not deleted either.
"""

from __future__ import annotations

import asyncio

from quarterdeck.core.audit_seal import SealEnd, next_floor
from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import new_id
from quarterdeck.engine import log_sealer
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.log_sealer import LogState
from quarterdeck.engine.queries import Q
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sinks.retention import lowest_needed_position
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import decode

EVENT_RETENTION = "event-retention"
SEALS_MAX = 1_000
"""The maximum number of seals that one pass reads. A thousand seals cover at most a million events."""
EVENTS_MAX = 50_000
"""The maximum number of events that one pass deletes."""
DELETE_CHUNK = 250
"""Events deleted per transaction: a lane on the same SQLite file waits for at most one such transaction."""
LEASE_MS = 5_000


class EventRetention:
    def __init__(self, engine: Engine, settings: LogSettings) -> None:
        self._engine = engine
        self._settings = settings
        self.lease = Lease(engine, EVENT_RETENTION, new_id(), LEASE_MS)

    def sweep(self) -> Sweep:
        every_ms = self._settings.retention_cleanup_interval_ms
        return Sweep(EVENT_RETENTION, every_ms, EVENTS_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        """Raise the floor if more seals have expired. Then delete events up to the attested floor, in chunks, until
        `batch` events are deleted or none are left."""
        state = await self._engine.read(log_sealer.read_log_state)
        floor = await self._engine.read(lambda tx: self._find_new_floor(tx, state))
        if floor is not None and (fence := await self._get_fence()):
            await self._engine.transact(lambda tx: self._raise_floor(tx, fence))
        return await self._delete_expired(state.attested_floor, batch)

    async def _find_new_floor(self, tx: Transaction, state: LogState) -> int | None:
        """The floor that retention permits now, or None if it is not higher than the current one."""
        if state.newest_seal is None:
            return None
        [rows] = await tx.read(Q.seal_ends(above=state.bounds.floor, limit=SEALS_MAX))
        cutoff = tx.now - round(self._settings.event_retention_days * DAY)
        return next_floor(
            decode(rows, SealEnd), state.newest_seal, cutoff, lowest_needed=await lowest_needed_position(tx)
        )

    async def _raise_floor(self, tx: Transaction, fence: Fence) -> None:
        await fence.check(tx)
        floor = await self._find_new_floor(tx, await log_sealer.read_log_state(tx))
        if floor is not None:
            tx.write(Q.log_raise_floor(floor=floor))

    async def _delete_expired(self, attested_floor: int, batch: int) -> int:
        deleted_count = 0
        while deleted_count < batch and (count := await self._delete_chunk(attested_floor)):
            deleted_count += count
            await asyncio.sleep(0)
        return deleted_count

    async def _delete_chunk(self, attested_floor: int) -> int:
        lowest = await self._engine.read(_lowest_position)
        if lowest is None or lowest > attested_floor or (fence := await self._get_fence()) is None:
            return 0
        last_pos = min(lowest + DELETE_CHUNK - 1, attested_floor)

        async def delete(tx: Transaction) -> None:
            await fence.check(tx)
            tx.write(Q.log_delete_expired(upto=last_pos))

        await self._engine.transact(delete)
        return last_pos - lowest + 1

    async def _get_fence(self) -> Fence | None:
        return self.lease.fence() or await self.lease.acquire()


async def _lowest_position(tx: Transaction) -> int | None:
    [rows] = await tx.read(Q.log_lowest_position())
    return int(str(rows[0][0])) if rows else None
