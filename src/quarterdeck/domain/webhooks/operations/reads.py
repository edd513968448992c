"""Reads of endpoints and deliveries, and the search for pending deliveries across zones."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.webhooks.model import Delivery, DeliveryFilter, DeliveryState, Endpoint, EndpointFilter
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.webhooks.rules.endpoints import not_found
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode

READ_PERMISSION = "webhooks.read"
MAX_ID = "~"
"""Greater than every id."""


async def list_endpoints(tx: Transaction, filters: EndpointFilter) -> list[Endpoint]:
    """All endpoints of a zone, newest first, or the one with the given id."""
    await access.require_permission(tx, filters.caller, filters.zone_id, READ_PERMISSION)
    [rows] = await tx.read(Q.webhooks_of_zones(batch=[(filters.zone_id,)]))
    if not rows:
        await zones.require_zone(tx, filters.zone_id)
    endpoints = sorted(decode(rows, Endpoint), key=lambda row: row.id, reverse=True)
    if filters.id is None:
        return endpoints
    matching = [row for row in endpoints if row.id == filters.id]
    if not matching:
        raise not_found(filters.id)
    return matching


async def list_deliveries(tx: Transaction, filters: DeliveryFilter) -> list[Delivery]:
    """Up to `limit` deliveries of an endpoint, newest first."""
    await list_endpoints(tx, EndpointFilter(filters.zone_id, filters.caller, filters.endpoint_id))
    states = [filters.status] if filters.status else [*DeliveryState]
    pages = await tx.read(
        *(
            Q.webhook_deliveries_page(
                status=state,
                endpoint_id=filters.endpoint_id,
                zone_id=filters.zone_id,
                before=filters.before or MAX_ID,
                limit=filters.limit,
            )
            for state in states
        )
    )
    deliveries = decode([row for page in pages for row in page], Delivery)
    return sorted(deliveries, key=lambda row: row.id, reverse=True)[: filters.limit]


# -- across zones -------------------------------------------------------------------------------------------------


class PendingEndpoint(msgspec.Struct, frozen=True, array_like=True):
    """An endpoint with pending deliveries."""

    zone_id: str
    id: str
    enabled: int
    due_at: Millis
    """When its first pending delivery is due."""
    now: Millis

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


async def find_pending_endpoints(
    tx: Transaction, limit: int, excluded: Iterable[tuple[str, str | None]] = ()
) -> list[PendingEndpoint]:
    """Endpoints with pending deliveries: disabled ones first, each group by due time.

    `excluded` are (zone id, endpoint id), or (zone id, None) for a whole zone.
    """
    return await tx.fetch(PendingEndpoint, Q.webhook_endpoints_with_pending(excluded=[*excluded], limit=limit))
