"""Counts the used slots of zones, that is, their live child sessions, for the Redis mirror of slots."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.mirrors.slots import SlotUsage
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode


class _SlotRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    quotas: str
    live: int
    expired: int
    pos: int


class SlotCounts:
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
