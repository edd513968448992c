"""Removes the endpoints of ended zones, and deletes old rows."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import lowest_id_at
from quarterdeck.domain.webhooks.model import Endpoint, Remove
from quarterdeck.domain.webhooks.operations.endpoints import to_new_event, update_row
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.webhooks.rules.endpoints import PendingEvent, mark_removed
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement


async def on_zone_ended(tx: Transaction, events: Sequence[NewEvent]) -> None:
    """Listener: removes the endpoints of a zone in the transaction that ends it, which holds the zone's lock."""
    zone_ends = {event.zone_id: event for event in events if event.type == "zone.end"}
    if not zone_ends:
        return
    [rows] = await tx.read(Q.webhooks_of_zones(batch=[(zone_id,) for zone_id in sorted(zone_ends)]))
    if not rows:
        return
    before = decode(rows, Endpoint)
    after = [mark_removed(row, tx.now) for row in before]
    tx.write(Q.webhooks_update(batch=[update_row(row) for row in after]))
    for old, row in zip(before, after, strict=True):
        cause = zone_ends[row.zone_id]
        command = Remove(zone_id=row.zone_id, id=row.id, trace=cause.trace)
        tx.emit(to_new_event(PendingEvent(command, "removed", old, row)))


def retention_statements(before: Millis, limit: int) -> list[BoundStatement]:
    """Delete up to `limit` ended deliveries created before a time, and up to `limit` endpoints removed before it.

    An endpoint is deleted only when it has no deliveries left.
    """
    return [
        Q.webhook_deliveries_delete_expired(before_id=lowest_id_at(before), limit=limit),
        Q.webhooks_delete_expired(before=before, limit=limit),
    ]
