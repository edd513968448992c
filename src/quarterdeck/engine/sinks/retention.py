"""What sinks forget: entries that were given up long ago, and sinks that nobody runs any more.

A sink whose servers are gone, or are no longer told of it, would keep events from being removed for ever. Its row says
when it was last run; a server says so at its start and then at least once an hour, whether or not the other side is
there. Several processes may sweep at once: each delete names its guard.
"""

from __future__ import annotations

import logging
from functools import partial

from quarterdeck.core.clock import DAY
from quarterdeck.engine.queries import Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx

log = logging.getLogger("quarterdeck.sinks")
SINK_RETENTION = "sink-retention"
ROWS_MAX = 500


class SinkRetention:
    def __init__(self, everywhere: Engine, days: float, every_ms: int) -> None:
        self._everywhere = everywhere
        self._window = round(days * DAY)
        self._every_ms = every_ms

    def sweep(self) -> Sweep:
        return Sweep(SINK_RETENTION, self._every_ms, ROWS_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        for name in await self._everywhere.read(self._unattended):
            await self._everywhere.transact(partial(self._forget, name=name))
        return await self._everywhere.transact(lambda tx: self._forget_dead(tx, batch))

    async def _unattended(self, tx: Tx) -> list[str]:
        await tx.read()
        [rows] = await tx.read(Q.sinks_unattended(before=tx.now - self._window))
        return [str(row[0]) for row in rows]

    async def _forget(self, tx: Tx, name: str) -> None:
        await tx.read()
        [gone] = await tx.read(Q.sink_forget(name=name, before=tx.now - self._window))
        if gone:
            tx.write(Q.sink_forget_entries(sink=name))
            log.warning("the sink %s is forgotten: no server has run it for long", name)

    async def _forget_dead(self, tx: Tx, limit: int) -> int:
        await tx.read()
        [gone] = await tx.read(Q.sink_forget_dead(before=tx.now - self._window, limit=limit))
        return len(gone)


async def needed(tx: Tx) -> int | None:
    """The lowest position that a sink has still to tell; None if there is no sink."""
    [rows] = await tx.read(Q.sinks_needed())
    lowest = rows[0][0]
    return None if lowest is None else int(str(lowest)) + 1
