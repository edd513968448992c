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
from quarterdeck.domain.services.model import DeleteExpired, DeleteResult, Ref, ServiceSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction

RETENTION = "service-retention"
BATCH = 500
FindUnreferenced = Callable[[Transaction, Millis, int], Awaitable[list[Ref]]]
"""Services that were unregistered before a time, and that nothing which is kept names any more. The rooms above know
what names them."""


def sweeps(
    cross_zone_engine: Engine,
    find_unreferenced: FindUnreferenced,
    submit_delete: Callable[[DeleteExpired], Awaitable[DeleteResult]],
    settings: ServiceSettings,
    retention_every_ms: int = 900_000,
) -> list[Sweep]:
    async def find_expired(tx: Transaction, batch: int) -> list[DeleteExpired]:
        # A read of nothing but the clock: what is old is decided by the database's time.
        await tx.read()
        before = tx.now - round(settings.service_retention_days * DAY)
        found = await find_unreferenced(tx, before, batch)
        return [DeleteExpired(zone_id, service_id, before) for zone_id, service_id in found]

    async def delete_expired(batch: int) -> int:
        commands = await cross_zone_engine.read(lambda tx: find_expired(tx, batch))
        deleted = 0
        for outcome in await asyncio.gather(*map(submit_delete, commands), return_exceptions=True):
            # A zone that is gone has nothing to be removed from; anything else is worth a failed pass.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                raise outcome
            deleted += isinstance(outcome, DeleteResult) and outcome.is_deleted
        return deleted

    return [Sweep(RETENTION, retention_every_ms, BATCH, delete_expired)]
