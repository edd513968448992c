"""Looking at endpoints and deliveries; and, across zones, for what is to be delivered."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.agents.operations.authorization import require_power
from quarterdeck.domain.webhooks import rules
from quarterdeck.domain.webhooks.model import Delivery, DeliveryFilter, Endpoint, EndpointFilter, Ref, State
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode

READ = "webhooks.read"
AFTER_ALL = "~"
"""Greater than every id."""


async def endpoints(tx: Tx, wanted: EndpointFilter) -> list[Endpoint]:
    """All of a zone, newest first; or the one that is named."""
    await require_power(tx, wanted.caller, wanted.zone_id, READ)
    [rows] = await tx.read(Q.webhooks_of_zones(batch=[(wanted.zone_id,)]))
    if not rows:
        await zones.require(tx, wanted.zone_id)
    found = sorted(decode(rows, Endpoint), key=lambda row: row.id, reverse=True)
    if wanted.id is None:
        return found
    named = [row for row in found if row.id == wanted.id]
    if not named:
        raise rules.not_found(wanted.id)
    return named


async def deliveries(tx: Tx, wanted: DeliveryFilter) -> list[Delivery]:
    """Up to so many of an endpoint's, newest first."""
    await endpoints(tx, EndpointFilter(wanted.zone_id, wanted.caller, wanted.endpoint_id))
    states = [wanted.status] if wanted.status else [*State]
    pages = await tx.read(
        *(
            Q.webhook_deliveries_page(
                status=state,
                endpoint_id=wanted.endpoint_id,
                zone_id=wanted.zone_id,
                before=wanted.before or AFTER_ALL,
                limit=wanted.limit,
            )
            for state in states
        )
    )
    found = decode([row for page in pages for row in page], Delivery)
    return sorted(found, key=lambda row: row.id, reverse=True)[: wanted.limit]


# -- across zones -------------------------------------------------------------------------------------------------


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """An endpoint for which something waits."""

    zone_id: str
    id: str
    enabled: int
    at: Millis
    """When the first of it is due."""
    now: Millis

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


async def to_take(tx: Tx, limit: int, full: Iterable[tuple[str, str | None]] = ()) -> list[Waiting]:
    """Endpoints for which something waits, the earliest first; without those that are `full`, and without all of a zone
    that stands there alone."""
    [rows] = await tx.read(Q.webhook_deliveries_to_take(full=[*full], limit=limit))
    return decode(rows, Waiting)
