"""The sweeps of delegations: expiry and retention.

| sweep                | finds                                        | does                                      |
|----------------------|----------------------------------------------|-------------------------------------------|
| delegation-expiry    | active edges past their `expires_at`         | marks them expired, under the zone's lock |
| delegation-retention | edges that ended before the retention period | deletes the rows                          |

A derived edge expires no later than its parent, so the expiry sweep finds each edge by itself and cascades nothing. Any
number of replicas may sweep at once: an edge that one has marked is skipped by the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import NotFound
from quarterdeck.domain.delegations import operations
from quarterdeck.domain.delegations.model import DelegationSettings, Edge, Expire
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine

EXPIRY = "delegation-expiry"
RETENTION = "delegation-retention"


def sweeps(
    cross_zone_engine: Engine,
    submit_expire: Callable[[Expire], Awaitable[Edge]],
    settings: DelegationSettings,
    retention_every_ms: int = 900_000,
) -> list[Sweep]:
    """`cross_zone_engine` finds edges in all zones; a lane that sees only the zones concerned marks them."""

    async def expire(batch: int) -> int:
        refs = await cross_zone_engine.read(lambda tx: operations.find_expired(tx, batch))
        submissions = [submit_expire(Expire(zone_id, edge_id)) for zone_id, edge_id in refs]
        for outcome in await asyncio.gather(*submissions, return_exceptions=True):
            # An edge deleted between finding and marking is fine. Any other error fails the pass.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                raise outcome
        return len(refs)

    async def delete_expired(batch: int) -> int:
        retention_ms = round(settings.delegation_retention_days * DAY)
        return await cross_zone_engine.transact(lambda tx: operations.delete_expired(tx, retention_ms, batch))

    batch = settings.delegation_sweep_batch
    return [
        Sweep(EXPIRY, settings.delegation_sweep_interval_ms, batch, expire),
        Sweep(RETENTION, retention_every_ms, batch, delete_expired),
    ]
