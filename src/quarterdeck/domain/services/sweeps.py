"""The sweep that deletes old services.

| sweep             | finds                                                 | does                                    |
|-------------------|-------------------------------------------------------|-----------------------------------------|
| service-retention | services unregistered long ago that nothing refers to | deletes the rows, under the zone's lock |

Without this sweep the table would only grow: a program that listens on a different port each time it starts leaves a
row each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.core.ids import Ref
from quarterdeck.domain.services.model import DeleteResult, DeleteService, ServiceSettings
from quarterdeck.engine.sweep_passes import submit_all
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction

RETENTION = "service-retention"
BATCH = 500
FindUnreferenced = Callable[[Transaction, Millis, int], Awaitable[list[Ref]]]
"""(transaction, time, limit) → services that were unregistered before that time and that no stored row refers to.
Injected, because invocations refer to services and are a layer above them."""


def sweeps(
    cross_zone_engine: Engine,
    find_unreferenced: FindUnreferenced,
    submit_delete: Callable[[DeleteService], Awaitable[DeleteResult]],
    settings: ServiceSettings,
    retention_sweep_interval_ms: int = 900_000,
) -> list[Sweep]:
    async def find_past_retention(tx: Transaction, batch: int) -> list[DeleteService]:
        # An empty read sets `tx.now`, so that the database's clock decides what is old enough.
        await tx.read()
        before = tx.now - round(settings.service_retention_days * DAY)
        refs = await find_unreferenced(tx, before, batch)
        return [DeleteService(zone_id, service_id, before) for zone_id, service_id in refs]

    async def delete_past_retention(batch: int) -> int:
        commands = await cross_zone_engine.read(lambda tx: find_past_retention(tx, batch))
        return sum(result.is_deleted for result in await submit_all(submit_delete, commands))

    return [Sweep(RETENTION, retention_sweep_interval_ms, BATCH, delete_past_retention)]
