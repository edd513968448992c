"""How many of a zone's slots are taken: the children that live in it, for whoever shows them to others."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.mirrors.slots import Use
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode


class _SlotRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    quotas: str
    live: int
    expired: int
    pos: int


class SlotCounts:
    """An object only because it must know the platform's defaults."""

    def __init__(self, defaults: Limits) -> None:
        self._defaults = defaults

    async def of(self, tx: Tx, zone_ids: Collection[str]) -> list[Use]:
        [rows] = await tx.read(Q.slots_of(batch=[(zone_id,) for zone_id in sorted(zone_ids)]))
        return self._uses(rows)

    async def names(self, tx: Tx, after: str, limit: int) -> list[str]:
        return [zone.id for zone in await zones.page(tx, after, limit)]

    def _uses(self, rows: list[Row]) -> list[Use]:
        return [
            Use(row.zone_id, row.live, row.expired, self._limit(row.quotas), row.pos) for row in decode(rows, _SlotRow)
        ]

    def _limit(self, quotas: str) -> int:
        return zone_rules.limits_by(quotas, self._defaults).max_concurrent
