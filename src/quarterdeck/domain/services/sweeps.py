"""The sweep of services.

| sweep             | finds                                           | does                                        |
|-------------------|-------------------------------------------------|---------------------------------------------|
| service-retention | what was unregistered long ago and nobody needs | removes the rows, by a lane, under the lock |

Services come and go with those who offer them: an endpoint with a port of its own for each run leaves a row each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.core.errors import NotFound
from quarterdeck.domain.services.model import Forget, Forgotten, Ref, ServiceSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx

RETENTION = "service-retention"
BATCH = 500
Unneeded = Callable[[Tx, Millis, int], Awaitable[list[Ref]]]
"""Services that were unregistered before a time, and that nothing which is kept names any more. The rooms above know
what names them."""


def sweeps(
    everywhere: Engine,
    unneeded: Unneeded,
    submit_forget: Callable[[Forget], Awaitable[Forgotten]],
    settings: ServiceSettings,
    retention_every_ms: int = 900_000,
) -> list[Sweep]:
    async def find(tx: Tx, batch: int) -> list[Forget]:
        # A read of nothing but the clock: what is old is decided by the database's time.
        await tx.read()
        before = tx.now - round(settings.service_retention_days * DAY)
        found = await unneeded(tx, before, batch)
        return [Forget(zone_id, service_id, before) for zone_id, service_id in found]

    async def forget(batch: int) -> int:
        asks = await everywhere.read(lambda tx: find(tx, batch))
        gone = 0
        for outcome in await asyncio.gather(*map(submit_forget, asks), return_exceptions=True):
            # A zone that is gone has nothing to be removed from; anything else is worth a failed pass.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                raise outcome
            gone += isinstance(outcome, Forgotten) and outcome.is_gone
        return gone

    return [Sweep(RETENTION, retention_every_ms, BATCH, forget)]
