"""Changes endpoints: load under the zones' locks, decide with `rules.endpoints`, persist. Also removes the endpoints of
ended zones, and deletes old rows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import lowest_id_at
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.webhooks.model import Create, Delivery, Endpoint, EndpointResult, Remove, Replay, WebhookCommand
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.webhooks.rules.endpoints import (
    EndpointBatchInput,
    EndpointDecider,
    EndpointPolicy,
    PendingEvent,
    key_scope,
    mark_removed,
)
from quarterdeck.domain.zones import rules as zone_rules
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

CHANGE_PERMISSION = "webhooks.change"


class EndpointUpdater:
    def __init__(self, policy: EndpointPolicy) -> None:
        self._policy = policy

    async def run(self, tx: Transaction, commands: Sequence[WebhookCommand]) -> list[EndpointResult | Problem | Busy]:
        batch = [(zone_id,) for zone_id in sorted({command.zone_id for command in commands})]
        replay_keys = sorted(
            {(command.id, command.zone_id, command.delivery_id) for command in commands if isinstance(command, Replay)}
        )
        keys = [key for command in commands if isinstance(command, Create) and (key := key_scope(command)) is not None]
        locked, [rows, delivery_rows, key_rows] = await access.lock_with_roles(
            tx,
            commands,
            Q.webhooks_of_zones(batch=batch),
            Q.webhook_deliveries_get(batch=replay_keys),
            idempotency.load_keys(keys),
        )
        decider = EndpointDecider(
            tx.now,
            zone_rules.ended_zone_problems(locked.zones.values()),
            EndpointBatchInput(
                decode(rows, Endpoint), decode(delivery_rows, Delivery), idempotency.decode_records(key_rows)
            ),
            self._policy,
        )
        outcomes = [
            locked.permission_problem(command, CHANGE_PERMISSION) or decider.decide(command) for command in commands
        ]
        await _persist(tx, decider)
        return outcomes


async def _persist(tx: Transaction, decider: EndpointDecider) -> None:
    if decider.created:
        tx.write(Q.webhooks_insert(batch=[msgspec.structs.astuple(decider.row(ref)) for ref in decider.created]))
    if decider.keys.new_records:
        tx.write(idempotency.store_records(decider.keys.new_records, tx.now))
    if changed := sorted(decider.changed):
        [updated] = await tx.read(Q.webhooks_update(batch=[update_row(decider.row(ref)) for ref in changed]))
        if len(updated) != len(changed):
            raise RuntimeError("webhooks were changed by another transaction despite the zone's lock")
    if reenabled := sorted(decider.reenabled):
        tx.write(Q.webhooks_reset_position(batch=[*reenabled]))
    if url_changed := sorted(decider.url_changed):
        tx.write(Q.webhooks_clear_failing(batch=[*url_changed]))
    if decider.test_deliveries:
        tx.write(Q.webhook_deliveries_insert(batch=[msgspec.structs.astuple(row) for row in decider.test_deliveries]))
    if replayed := [row for _, row in sorted(decider.replayed.items())]:
        replay_rows = [(row.endpoint_id, row.zone_id, row.id, row.queue, row.next_at) for row in replayed]
        tx.write(Q.webhook_deliveries_replay(batch=replay_rows))
    for pending in decider.events:
        tx.emit(to_new_event(pending))


def update_row(
    row: Endpoint,
) -> tuple[str, str, str, str | None, str, int, int | None, int, str | None, int, int | None]:
    return (
        row.zone_id,
        row.id,
        row.url,
        row.description,
        row.types,
        row.secret_number,
        row.rotated_at,
        row.enabled,
        row.disabled_reason,
        row.updated_at,
        row.removed_at,
    )


def to_new_event(pending: PendingEvent) -> NewEvent:
    """The event contains neither the URL nor a secret, because readers of the log do not need them."""
    data = msgspec.json.encode(dict(pending.data)).decode()
    before = None if pending.before is None else _state_name(pending.before)
    command, after = pending.command, pending.after
    return NewEvent(
        f"webhook.{pending.verb}",
        after.zone_id,
        after.id,
        command.actor,
        before,
        _state_name(after),
        data,
        command.trace,
    )


def _state_name(row: Endpoint) -> str:
    if row.removed_at is not None:
        return "removed"
    return "enabled" if row.enabled else "disabled"


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
