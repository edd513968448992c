"""The sweeps of sessions: what has expired, what lost its parent, what was left half-way.

They only find; the ending itself goes through the same lanes as everybody's, under the zone's lock, so any number of
replicas may sweep at once: what one has ended, another finds already ended.

| sweep   | finds                                             | does                                        |
|---------|---------------------------------------------------|---------------------------------------------|
| ttl     | sessions past their time                          | ends them with their subtrees                |
| orphan  | live sessions whose parent has ended or is gone   | ends them: `orphaned`                        |
| cascade | endings that are under way                        | settles them to the end, whoever began them  |
| session-retention | what ended long ago                     | removes the rows, children before parents    |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import NotFound
from quarterdeck.domain.sessions import operations, rules
from quarterdeck.domain.sessions.model import SessionSettings, Terminate
from quarterdeck.domain.sessions.operations import Finisher
from quarterdeck.domain.sessions.rules.ending import Ref
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.tx import Engine, Tx

TTL = "ttl"
ORPHAN = "orphan"
CASCADE = "cascade"
RETENTION = "session-retention"
ORPHANED = "orphaned"
"""The reason of what was found without a living parent."""


def sweeps(
    everywhere: Engine, finisher: Finisher, settings: SessionSettings, retention_every_ms: int = 900_000
) -> list[Sweep]:
    """`everywhere` sees all zones: what it finds is ended by lanes that see only the zones concerned."""

    def ending(
        reason: str, find: Callable[[Tx, int], Awaitable[list[Ref]]]
    ) -> Callable[[int], Awaitable[int]]:
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


async def _all(works: Sequence[Awaitable[object]]) -> None:
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        # Gone between finding and ending is what a sweep wants; anything else is worth a failed pass.
        if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
            raise outcome
