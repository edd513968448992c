"""The sweeps of invocations. They only find; what follows is decided in the lane, under the zone's lock.

| sweep                | finds                                               | does                         |
|----------------------|-----------------------------------------------------|------------------------------|
| deadline             | attempts whose deadline or lease has passed         | the next attempt, or the end |
| invocation-orphan    | what waits or runs for a session that is gone       | cancels it                   |
| invocation-retention | what ended long ago                                 | removes the rows             |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import NotFound
from quarterdeck.domain.invocations import operations
from quarterdeck.domain.invocations.model import InvocationSettings, Outcome, Overdue, Ref
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.tx import Engine, Tx

DEADLINE = "deadline"
ORPHAN = "invocation-orphan"
RETENTION = "invocation-retention"
BATCH = 500


def sweeps(
    everywhere: Engine,
    submit: Callable[[Overdue], Awaitable[Outcome]],
    settings: InvocationSettings,
    retention_every_ms: int = 900_000,
) -> list[Sweep]:
    """`everywhere` sees all zones: what it finds is moved by a lane that sees only the zones concerned."""

    def moving(find: Callable[[Tx, int], Awaitable[list[Ref]]]) -> Callable[[int], Awaitable[int]]:
        async def run_once(batch: int) -> int:
            refs = await everywhere.read(lambda tx: find(tx, batch))
            asked = [submit(Overdue(zone_id=zone_id, id=name)) for zone_id, name in refs]
            for outcome in await asyncio.gather(*asked, return_exceptions=True):
                # Gone between finding and moving is nobody's loss; anything else is worth a failed pass.
                if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                    raise outcome
            return len(refs)

        return run_once

    async def forget(batch: int) -> int:
        window = round(settings.invocation_retention_days * DAY)
        return await everywhere.transact(lambda tx: operations.forget(tx, window, batch))

    return [
        Sweep(DEADLINE, settings.deadline_sweep_interval_ms, BATCH, moving(operations.overdue)),
        Sweep(ORPHAN, settings.invocation_orphan_interval_ms, BATCH, moving(operations.orphaned)),
        Sweep(RETENTION, retention_every_ms, BATCH, forget),
    ]
