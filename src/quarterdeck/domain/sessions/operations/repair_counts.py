"""Counts that are wrong are set right by the rows they count.

They move in the same transaction as what they count, so nothing of ours makes them wrong; a hand in the database, or a
restored half of it, can. Looking takes no lock. What was found wrong is counted again under the zone's lock, where it
cannot be wrong only because something is under way.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions.model import Recount, Recounted
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx

NAMED_MAX = 20
"""How many of the counts that were wrong the event names."""


async def is_miscounted(tx: Tx, zone_id: str) -> bool:
    [rows] = await tx.read(Q.counts_wrong(zone_id=zone_id))
    return bool(rows)


async def recount(tx: Tx, asks: Sequence[Recount]) -> list[Recounted | Problem | Busy]:
    """Sets the counts of zones right."""
    wanted = {ask.zone_id for ask in asks}
    [locked_rows] = await tx.read(zones.lock(tx, wanted))
    locked = zones.locked(locked_rows)
    why_not = await zones.unlocked(tx, wanted - locked.keys())
    mended = {zone_id: await _mend(tx, zone_id) for zone_id in sorted(locked)}
    return [why_not.get(ask.zone_id) or Recounted(mended[ask.zone_id]) for ask in asks]


async def _mend(tx: Tx, zone_id: str) -> int:
    [rows] = await tx.read(Q.counts_wrong(zone_id=zone_id))
    if not rows:
        return 0
    tx.write(Q.counts_mend(batch=[(zone_id, scope, key, n) for scope, key, n in rows]))
    named = [f"{scope} {key}".strip() for scope, key, _ in rows[:NAMED_MAX]]
    data = msgspec.json.encode({"mended": len(rows), "counts": named}).decode()
    tx.emit(NewEvent("zone.recount", zone_id, zone_id, "sweep", data=data))
    return len(rows)
