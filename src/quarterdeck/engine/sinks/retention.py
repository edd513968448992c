"""Deletes entries that have been dead for the retention period, and sinks that no server runs any longer.

A sink whose servers are gone, or no longer configure it, would block the retention of events forever. Its row records
when a server last ran it. A server updates that time when it starts and then at least once an hour, whether or not the
target is reachable. Several processes may sweep at once: each delete repeats its condition.
"""

from __future__ import annotations

import logging
from functools import partial

from quarterdeck.core.clock import DAY
from quarterdeck.engine.queries import Q
from quarterdeck.engine.sweep_passes import delete_past_retention
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction

log = logging.getLogger("quarterdeck.sinks")
SINK_RETENTION = "sink-retention"
ROWS_MAX = 500


class SinkRetention:
    def __init__(self, cross_zone_engine: Engine, retention_days: float, every_ms: int) -> None:
        self._cross_zone_engine = cross_zone_engine
        self._retention_ms = round(retention_days * DAY)
        self._every_ms = every_ms
        self._delete_dead_entries = delete_past_retention(
            cross_zone_engine,
            self._retention_ms,
            lambda before, limit: [Q.sink_entries_delete_expired(before=before, limit=limit)],
        )

    def sweep(self) -> Sweep:
        return Sweep(SINK_RETENTION, self._every_ms, ROWS_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        for name in await self._cross_zone_engine.read(self._list_abandoned):
            await self._cross_zone_engine.transact(partial(self._delete_sink, name=name))
        return await self._delete_dead_entries(batch)

    async def _list_abandoned(self, tx: Transaction) -> list[str]:
        await tx.read()
        [rows] = await tx.read(Q.sinks_abandoned(before=tx.now - self._retention_ms))
        return [str(row[0]) for row in rows]

    async def _delete_sink(self, tx: Transaction, name: str) -> None:
        await tx.read()
        if await tx.has_rows(Q.sink_delete_expired(name=name, before=tx.now - self._retention_ms)):
            tx.write(Q.sink_entries_delete_all(sink=name))
            log.warning("deleted sink %s: no server has run it for the retention period", name)


async def lowest_needed_position(tx: Transaction) -> int | None:
    """The lowest position that a sink has not delivered yet, or None if there is no sink."""
    [rows] = await tx.read(Q.sinks_lowest_position())
    lowest = rows[0][0]
    return None if lowest is None else int(str(lowest)) + 1
