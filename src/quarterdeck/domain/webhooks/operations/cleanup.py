"""What goes with a zone, and what is forgotten in its time."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import first_id
from quarterdeck.domain.webhooks.model import Endpoint, Remove
from quarterdeck.domain.webhooks.operations.endpoints import change_row, event
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.webhooks.rules.endpoints import Told, removed
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode


async def go_with_zone(tx: Tx, events: Sequence[NewEvent]) -> None:
    """Hears of events in their own transaction: when a zone ends, its endpoints are removed with it. Whoever ends a
    zone holds its lock."""
    ended = {event.zone_id: event for event in events if event.type == "zone.end"}
    if not ended:
        return
    [rows] = await tx.read(Q.webhooks_of_zones(batch=[(zone_id,) for zone_id in sorted(ended)]))
    if not rows:
        return
    before = decode(rows, Endpoint)
    after = [removed(row, tx.now) for row in before]
    tx.write(Q.webhooks_change(batch=[change_row(row) for row in after]))
    for was, row in zip(before, after, strict=True):
        cause = ended[row.zone_id]
        ask = Remove(zone_id=row.zone_id, id=row.id, trace=cause.trace)
        tx.emit(event(Told(ask, "removed", was, row)))


async def forget(tx: Tx, window: Millis, limit: int) -> int:
    """Removes up to so many deliveries that are over and were made before the window; then endpoints of which nothing
    is left."""
    await tx.read()
    before = tx.now - window
    gone, ended = await tx.read(
        Q.webhook_deliveries_forget(before_id=first_id(before), limit=limit),
        Q.webhooks_forget(before=before, limit=limit),
    )
    return max(len(gone), len(ended))
