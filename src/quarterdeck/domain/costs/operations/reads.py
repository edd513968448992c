"""Lists budgets, and sums costs for reports."""

from __future__ import annotations

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.costs import rules
from quarterdeck.domain.costs.model import Budget, CostFilter, CostGroup
from quarterdeck.domain.costs.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

READ_PERMISSION = "costs.read"
ALL_DAYS = (0, 10**9)
"""(first day, first excluded day), as days since 1970-01-01."""


async def list_budgets(
    tx: Transaction, caller: Caller, zone_id: str, after: tuple[str, str, str], limit: int
) -> list[Budget]:
    await access.require_permission(tx, caller, zone_id, READ_PERMISSION)
    scope, scope_key, period = after
    [rows] = await tx.read(
        Q.budgets_page(zone_id=zone_id, scope=scope, scope_key=scope_key, period=period, limit=limit)
    )
    if not rows:
        await zones.require_zone(tx, zone_id)
    return [rules.roll_over(budget, tx.now) for budget in decode(rows, Budget)]


async def read_costs(tx: Transaction, filters: CostFilter) -> list[CostGroup]:
    await access.require_permission(tx, filters.caller, filters.zone_id, READ_PERMISSION)
    [rows] = await tx.read(_costs_statement(filters))
    if not rows:
        await zones.require_zone(tx, filters.zone_id)
    # PostgreSQL returns sums of bigint as numeric. They are whole numbers.
    groups = [CostGroup(str(key), *(int(str(number)) for number in sums)) for key, *sums in rows]
    if filters.group_by != "day":
        return groups
    return [msgspec.structs.replace(group, key=rules.format_day(int(group.key))) for group in groups]


def _costs_statement(filters: CostFilter) -> BoundStatement:
    first, end = ALL_DAYS
    since = first if filters.since_day is None else filters.since_day
    until = end if filters.until_day is None else filters.until_day
    zone_id, after, limit = filters.zone_id, filters.after, filters.limit
    if filters.group_by == "day":
        day = first - 1 if after is None else rules.parse_day(after, "cursor")
        return Q.costs_by_day(zone_id=zone_id, since=since, until=until, after=day, limit=limit)
    if filters.group_by == "task":
        return Q.costs_by_task(zone_id=zone_id, since=since, until=until, after=after, limit=limit)
    group_by = filters.group_by
    return Q.costs_grouped(zone_id=zone_id, grouped_by=group_by, since=since, until=until, after=after, limit=limit)
