"""Recomputes wrong counts from the sessions.

Counts change in the same transaction as the sessions, so they are wrong only if someone edited the database by hand or
restored only a part of it. The first comparison takes no lock. A zone with a difference is compared again under its
lock, which rules out a difference caused by a running transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.sessions.model import RepairCounts, RepairCountsResult
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction

EVENT_COUNTS_MAX = 20
"""Maximum repaired counts that the event lists."""


async def has_mismatched_counts(tx: Transaction, zone_id: str) -> bool:
    return await tx.has_rows(Q.counts_mismatched(zone_id=zone_id))


async def repair_zone_counts(
    tx: Transaction, commands: Sequence[RepairCounts]
) -> list[RepairCountsResult | Problem | Busy]:
    batch, _ = await access.lock(tx, commands)
    repaired = {zone_id: await _repair(tx, zone_id) for zone_id in sorted(batch.zones)}
    return [
        batch.lock_failures.get(command.zone_id) or RepairCountsResult(repaired[command.zone_id])
        for command in commands
    ]


async def _repair(tx: Transaction, zone_id: str) -> int:
    [rows] = await tx.read(Q.counts_mismatched(zone_id=zone_id))
    if not rows:
        return 0
    tx.write(Q.counts_repair(batch=[(zone_id, str(scope), str(key), int(str(n))) for scope, key, n in rows]))
    names = [f"{scope} {key}".strip() for scope, key, _ in rows[:EVENT_COUNTS_MAX]]
    data = msgspec.json.encode({"mended": len(rows), "counts": names}).decode()
    tx.emit(NewEvent("zone.recount", zone_id, zone_id, "sweep", data=data))
    return len(rows)
