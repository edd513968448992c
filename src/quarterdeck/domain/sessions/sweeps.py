"""The sweeps of sessions: what has expired, what lost its parent, what was left half-way.

They only find; the ending itself goes through the same lanes as everybody's, under the zone's lock, so any number of
replicas may sweep at once: what one has ended, another finds already ended.

| sweep   | finds                                             | does                                        |
|---------|---------------------------------------------------|---------------------------------------------|
| ttl     | sessions past their time                          | ends them with their subtrees                |
| orphan  | live sessions whose parent has ended or is gone   | ends them: `orphaned`                        |
| cascade | endings that are under way                        | settles them to the end, whoever began them  |
| session-retention | what ended long ago                     | removes the rows, children before parents    |
| reconcile | counts that are not what they count             | sets them right by the rows                  |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import NotFound
from quarterdeck.domain.sessions import operations, rules
from quarterdeck.domain.sessions.model import Recount, Recounted, SessionSettings, Terminate
from quarterdeck.domain.sessions.operations import Finisher
from quarterdeck.domain.sessions.rules.cascade import Ref
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import TransientError

log = logging.getLogger("quarterdeck.sessions")

TTL = "ttl"
ORPHAN = "orphan"
CASCADE = "cascade"
RETENTION = "session-retention"
RECONCILE = "reconcile"
ZONES_AT_ONCE = 100
MENDED_MAX = 10_000
ORPHANED = "orphaned"
"""The reason of what was found without a living parent."""


def sweeps(
    everywhere: Engine, finisher: Finisher, settings: SessionSettings, retention_every_ms: int = 900_000
) -> list[Sweep]:
    """`everywhere` sees all zones: what it finds is ended by lanes that see only the zones concerned."""

    def ending(reason: str, find: Callable[[Tx, int], Awaitable[list[Ref]]]) -> Callable[[int], Awaitable[int]]:
        async def run_once(batch: int) -> int:
            refs = await everywhere.read(lambda tx: find(tx, batch))
            await _all([finisher.end(Terminate(zone_id, name, reason)) for zone_id, name in refs])
            return len(refs)

        return run_once

    async def finish(batch: int) -> int:
        refs = await everywhere.read(lambda tx: operations.unfinished(tx, batch))
        await _all([finisher.finish(zone_id, name) for zone_id, name in refs])
        return len(refs)

    async def forget(batch: int) -> int:
        window = round(settings.session_retention_days * DAY)
        removed = 0
        # Level by level: what was the parent of something a moment ago is a leaf now.
        while removed < batch:
            some = await everywhere.transact(lambda tx: operations.forget(tx, window, batch))
            removed += some
            if not some:
                break
        return removed

    batch = settings.ttl_sweep_batch
    return [
        Sweep(TTL, settings.ttl_sweep_interval_ms, batch, ending(rules.EXPIRED, operations.expired)),
        Sweep(ORPHAN, settings.orphan_sweep_interval_ms, batch, ending(ORPHANED, operations.orphaned)),
        Sweep(CASCADE, settings.cascade_sweep_interval_ms, batch, finish),
        Sweep(RETENTION, retention_every_ms, batch, forget),
    ]


class Reconciler:
    """Walks the zones to the end, and at its next turn from the beginning. The place it has come to, should the time
    not be enough, is kept in this process only: several walkers mend nothing that one of them would not."""

    def __init__(self, everywhere: Engine, mend: Callable[[Recount], Awaitable[Recounted]]) -> None:
        self._everywhere = everywhere
        self._mend = mend
        self._place = ""

    def sweep(self, every_ms: int) -> Sweep:
        return Sweep(RECONCILE, every_ms, MENDED_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        """How many counts it has mended. Should they be more than a batch, it begins again at once."""
        mended = 0
        while mended < batch:
            some = await self._everywhere.read(lambda tx: zones.page(tx, self._place, ZONES_AT_ONCE))
            for zone in some:
                mended += await self._look_at(zone.id)
                self._place = zone.id
            if len(some) < ZONES_AT_ONCE:
                self._place = ""
                break
        return mended

    async def _look_at(self, zone_id: str) -> int:
        try:
            if await self._everywhere.read(lambda tx: operations.is_miscounted(tx, zone_id)):
                return (await self._mend(Recount(zone_id))).mended
        except TransientError as error:
            # Too much to count in time, or nobody to ask. The other zones get their turn.
            log.warning("the counts of zone %s could not be compared: %s", zone_id, error)
        return 0


async def _all(works: Sequence[Awaitable[object]]) -> None:
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        # Gone between finding and ending is what a sweep wants; anything else is worth a failed pass.
        if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
            raise outcome
