"""Repairs wrong counts of sessions, and counts the used slots of zones for the Redis mirror.

Counts change in the same transaction as the sessions, so they are wrong only if someone edited the database by hand or
restored only a part of it. The first comparison takes no lock. A zone with a difference is compared again under its
lock, which rules out a difference caused by a running transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.sessions.model import RepairCounts, RepairCountsResult
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.mirrors.slots import SlotUsage
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode

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


class _SlotRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    quotas: str
    live: int
    expired: int
    pos: int


class SlotCounts:
    """The used slots of zones, that is, their live child sessions."""

    def __init__(self, default_limits: Limits) -> None:
        self._default_limits = default_limits

    async def load_usage(self, tx: Transaction, zone_ids: Collection[str]) -> list[SlotUsage]:
        [rows] = await tx.read(Q.zone_slot_counts(batch=[(zone_id,) for zone_id in sorted(zone_ids)]))
        return self._decode_usages(rows)

    async def list_zones(self, tx: Transaction, after: str, limit: int) -> list[str]:
        return [zone.id for zone in await zones.list_zones(tx, after, limit)]

    def _decode_usages(self, rows: list[Row]) -> list[SlotUsage]:
        return [
            SlotUsage(row.zone_id, row.live, row.expired, self._max_concurrent(row.quotas), row.pos)
            for row in decode(rows, _SlotRow)
        ]

    def _max_concurrent(self, quotas: str) -> int:
        return zone_rules.limits_from_quotas(quotas, self._default_limits).max_concurrent
