"""What changes endpoints: load under the zones' locks, decide by `rules.endpoints`, write."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.operations.authorization import Speakers
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.webhooks.model import Changed, Command, Create, Delivery, Endpoint, Replay
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.webhooks.rules.endpoints import Registry, Stored, Terms, Told, key_of
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode

CHANGE = "webhooks.change"
Batch = list[tuple[object, ...]]


class Changer:
    """An object only because it must know what endpoints are held to."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    async def run(self, tx: Tx, asks: Sequence[Command]) -> list[Changed | Problem | Busy]:
        """Every verb, in order of arrival."""
        speakers = Speakers(asks)
        spoken = speakers.statements()
        batch: Batch = [(zone_id,) for zone_id in sorted({ask.zone_id for ask in asks})]
        replays: Batch = sorted({(ask.id, ask.zone_id, ask.delivery_id) for ask in asks if isinstance(ask, Replay)})
        keys = [key for ask in asks if isinstance(ask, Create) and (key := key_of(ask)) is not None]
        locked_rows, *said, rows, delivery_rows, bound = await tx.read(
            zones.lock(tx, zones_of(asks)),
            *spoken,
            Q.webhooks_of_zones(batch=batch),
            Q.webhook_deliveries_get(batch=replays),
            idempotency.load(keys),
        )
        locked, heard = zones.locked(locked_rows), speakers.heard(said, tx.now)
        why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
        registry = Registry(
            tx.now,
            zone_rules.endings(locked.values()),
            Stored(decode(rows, Endpoint), decode(delivery_rows, Delivery), idempotency.loaded(bound)),
            self._terms,
        )
        outcomes = [
            sessions.held_up(ask, why_not) or heard.problem(ask, CHANGE) or registry.decide(ask) for ask in asks
        ]
        await _write(tx, registry)
        return outcomes


async def _write(tx: Tx, registry: Registry) -> None:
    if registry.created:
        tx.write(Q.webhooks_insert(batch=[_row(registry.row(ref)) for ref in registry.created]))
    if registry.bindings:
        tx.write(idempotency.store(registry.bindings, tx.now))
    if changed := sorted(registry.changed):
        [moved] = await tx.read(Q.webhooks_change(batch=[change_row(registry.row(ref)) for ref in changed]))
        if len(moved) != len(changed):
            raise RuntimeError("webhooks moved under the zone's lock")
    if begun := sorted(registry.begun):
        tx.write(Q.webhooks_begin(batch=[*begun]))
    if elsewhere := sorted(registry.moved):
        tx.write(Q.webhooks_recover(batch=[*elsewhere]))
    if registry.tried:
        tx.write(Q.webhook_deliveries_insert(batch=[_row(row) for row in registry.tried]))
    if replayed := [row for _, row in sorted(registry.replayed.items())]:
        again: Batch = [(row.endpoint_id, row.zone_id, row.id, row.queue, row.next_at) for row in replayed]
        tx.write(Q.webhook_deliveries_replay(batch=again))
    for told in registry.told:
        tx.emit(event(told))


def _row(row: Endpoint | Delivery) -> tuple[object, ...]:
    return msgspec.structs.astuple(row)


def change_row(row: Endpoint) -> tuple[object, ...]:
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


def event(told: Told) -> NewEvent:
    """Neither the URL nor a secret is told: whoever may read the log need not know them."""
    data = msgspec.json.encode(dict(told.data)).decode()
    before = None if told.before is None else _standing(told.before)
    ask, after = told.ask, told.after
    return NewEvent(
        f"webhook.{told.verb}", after.zone_id, after.id, ask.actor, before, _standing(after), data, ask.trace
    )


def _standing(row: Endpoint) -> str:
    if row.removed_at is not None:
        return "removed"
    return "enabled" if row.enabled else "disabled"
