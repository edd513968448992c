"""The sweeps of invocations. They only find; what follows is decided in lanes, under the zone's lock.

| sweep                | finds                                               | does                          |
|----------------------|-----------------------------------------------------|-------------------------------|
| deadline             | attempts whose deadline or lease has passed         | the next attempt, or the end  |
| invocation-settle    | sessions and services with more calls than were settled with them | settles the rest |
| invocation-orphan    | what waits or runs for a session that is gone       | cancels it                    |
| invocation-retention | what ended long ago                                 | removes the rows              |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import NotFound
from quarterdeck.domain.invocations import operations
from quarterdeck.domain.invocations.model import InvocationSettings, Outcome, Overdue, Ref, Settle, Settled
from quarterdeck.domain.invocations.operations.reads import Place
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx

DEADLINE = "deadline"
SETTLE = "invocation-settle"
ORPHAN = "invocation-orphan"
RETENTION = "invocation-retention"
BATCH = 500
SLICE = 5_000
"""Calls that one statement of the orphan sweep looks at."""
SLICES_MAX = 100
"""Slices that one pass looks at: half a million calls."""
Move = Callable[[Overdue], Awaitable[Outcome]]


def sweeps(
    everywhere: Engine,
    submit: Move,
    submit_settle: Callable[[Settle], Awaitable[Settled]],
    settings: InvocationSettings,
    retention_every_ms: int = 900_000,
) -> list[Sweep]:
    """`everywhere` sees all zones: what it finds is moved by lanes that see only the zones concerned."""

    async def overdue(batch: int) -> int:
        refs = await everywhere.read(lambda tx: operations.overdue(tx, batch))
        await _move(submit, refs)
        return len(refs)

    async def settle(batch: int) -> int:
        found = await everywhere.read(lambda tx: operations.oldest_backlogs(tx, batch))
        left = found
        while left:
            done = await asyncio.gather(*(submit_settle(each) for each in left))
            left = [each for each, settled in zip(left, done, strict=True) if not settled.finished]
        return len(found)

    async def forget(batch: int) -> int:
        window = round(settings.invocation_retention_days * DAY)
        return await everywhere.transact(lambda tx: operations.forget(tx, window, batch))

    orphans = Orphans(everywhere, submit)
    return [
        Sweep(DEADLINE, settings.deadline_sweep_interval_ms, BATCH, overdue),
        Sweep(SETTLE, settings.invocation_settle_interval_ms, BATCH, settle),
        Sweep(ORPHAN, settings.invocation_orphan_interval_ms, SLICE * SLICES_MAX, orphans.run_once),
        Sweep(RETENTION, retention_every_ms, BATCH, forget),
    ]


class Orphans:
    """Walks round and round what waits or runs for sessions: which of those a hand has removed, no index tells.

    The place it has come to is kept in this process only: losing it costs a walk from the beginning, and several
    walkers at once move nothing that one of them would not.
    """

    def __init__(self, everywhere: Engine, submit: Move) -> None:
        self._everywhere = everywhere
        self._submit = submit
        self._place = operations.BEGINNING

    async def run_once(self, batch: int) -> int:
        moved = 0
        for _ in range(SLICES_MAX):
            refs, self._place = await self._everywhere.read(self._next)
            await _move(self._submit, refs)
            moved += len(refs)
            if self._place == operations.BEGINNING:
                break
        return moved

    async def _next(self, tx: Tx) -> tuple[list[Ref], Place]:
        return await operations.orphaned(tx, self._place, SLICE)


async def _move(submit: Move, refs: Sequence[Ref]) -> None:
    for begin in range(0, len(refs), BATCH):
        asked = [submit(Overdue(zone_id=zone_id, id=name)) for zone_id, name in refs[begin : begin + BATCH]]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            # Gone between finding and moving is nobody's loss; anything else is worth a failed pass.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                raise outcome
