"""Retention: services that were unregistered long ago are removed.

Under the zone's lock, unlike what has ended for good: a service may come back under its id, and whoever registers it
must find it there or not, and not lose it in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.services.model import Forget, Forgotten
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx


async def forget(tx: Tx, asks: Sequence[Forget]) -> list[Forgotten | Problem | Busy]:
    [rows] = await tx.read(zones.lock(tx, zones_of(asks)))
    locked = zones.locked(rows)
    why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
    batch: list[tuple[object, ...]] = [
        *sorted({(ask.zone_id, ask.service_id, ask.before) for ask in asks if ask.zone_id in locked})
    ]
    [gone] = await tx.read(Q.services_forget(batch=batch))
    removed = {(str(zone_id), str(service_id)) for zone_id, service_id in gone}
    return [why_not.get(ask.zone_id) or Forgotten((ask.zone_id, ask.service_id) in removed) for ask in asks]
