"""Attempts: taking what is due, and writing down what came of it. Without the zone's lock, which a busy zone needs for
itself: a delivery is guarded by its lease, and what else a report may change of an endpoint by its own statement."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.webhooks.model import Delivery, Endpoint, Ref, Report, Reported, Settle, Settled, Take, Taken
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.webhooks.rules import states
from quarterdeck.domain.webhooks.rules.states import Patience
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode

Batch = list[tuple[object, ...]]


async def take(tx: Tx, asks: Sequence[Take]) -> list[Taken | Problem | Busy]:
    """Gives each what is due, leased; nothing of an endpoint that hears of nothing any more."""
    # A second ask for the same endpoint finds nothing: the rows of the first are read by it, too, and given once.
    refs: Batch = sorted({(ask.zone_id, ask.endpoint_id) for ask in asks})
    due = [Q.webhook_deliveries_due(queue=ask.endpoint_id, zone_id=ask.zone_id, limit=ask.number) for ask in asks]
    endpoint_rows, *found = await tx.read(Q.webhooks_get(batch=refs), *due)
    endpoints = _by_ref(endpoint_rows)
    outcomes: list[Taken | Problem | Busy] = []
    leases: dict[tuple[str, str, str], tuple[object, ...]] = {}
    for ask, rows in zip(asks, found, strict=True):
        endpoint = endpoints.get((ask.zone_id, ask.endpoint_id))
        given = []
        for row in decode(rows, Delivery) if endpoint is not None and endpoint.enabled else []:
            key = (row.endpoint_id, row.zone_id, row.id)
            if key in leases:
                continue
            until = tx.now + ask.lease_ms
            leases[key] = (*key, row.next_at, until)
            given.append(msgspec.structs.replace(row, attempts=row.attempts + 1, next_at=until))
        outcomes.append(Taken(endpoint, tuple(given), tx.now))
    if leases:
        tx.write(Q.webhook_deliveries_take(batch=[lease for _, lease in sorted(leases.items())], now=tx.now))
    return outcomes


class Reporter:
    """An object only because it must know how long what fails is borne."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    async def report(self, tx: Tx, asks: Sequence[Report]) -> list[Reported | Problem | Busy]:
        named: Batch = sorted({(ask.endpoint_id, ask.zone_id, ask.id) for ask in asks})
        refs: Batch = sorted({(ask.zone_id, ask.endpoint_id) for ask in asks})
        endpoint_rows, rows = await tx.read(Q.webhooks_get(batch=refs), Q.webhook_deliveries_get(batch=named))
        endpoints = _by_ref(endpoint_rows)
        known = {(row.endpoint_id, row.zone_id, row.id): row for row in decode(rows, Delivery)}
        steps: dict[tuple[str, str, str], tuple[object, ...]] = {}
        for ask in asks:
            key = (ask.endpoint_id, ask.zone_id, ask.id)
            row = known.get(key)
            if row is not None and row.next_at == ask.until:
                steps[key] = _step(states.reported(row, ask, tx.now, self._patience.schedule), ask.until)
        self._note(tx, asks, endpoints)
        moved: set[tuple[object, ...]] = set()
        if steps:
            [answers] = await tx.read(Q.webhook_deliveries_report(batch=[step for _, step in sorted(steps.items())]))
            moved = {tuple(answer) for answer in answers}
        return [self._outcome(tx, ask, endpoints, moved) for ask in asks]

    def _note(self, tx: Tx, asks: Sequence[Report], endpoints: dict[Ref, Endpoint]) -> None:
        """Since when an endpoint fails. Of a batch in which something reached it, it does not."""
        reached = {(ask.zone_id, ask.endpoint_id) for ask in asks if ask.error is None}
        missed = {(ask.zone_id, ask.endpoint_id) for ask in asks} - reached
        if well := sorted(ref for ref in reached if _has_failed(endpoints.get(ref))):
            tx.write(Q.webhooks_recover(batch=[*well]))
        if ill := sorted(ref for ref in missed if not _has_failed(endpoints.get(ref))):
            tx.write(Q.webhooks_falter(batch=[*ill], now=tx.now))

    def _outcome(self, tx: Tx, ask: Report, endpoints: dict[Ref, Endpoint], moved: set[tuple[object, ...]]) -> Reported:
        endpoint = endpoints.get((ask.zone_id, ask.endpoint_id))
        counts = (ask.endpoint_id, ask.zone_id, ask.id) in moved
        if endpoint is None or not counts:
            return Reported(counts)
        return Reported(counts, states.ends(endpoint, ask, tx.now, self._patience.failing_ms))


async def settle(tx: Tx, asks: Sequence[Settle]) -> list[Settled | Problem | Busy]:
    """Ends up to so many of what waits for endpoints that hear of nothing any more; how many that were."""
    await tx.read()
    found = await tx.read(
        *(
            Q.webhook_deliveries_settle(
                queue=ask.endpoint_id, zone_id=ask.zone_id, limit=ask.limit, error=states.ENDPOINT_DISABLED, now=tx.now
            )
            for ask in asks
        )
    )
    return [Settled(len(rows)) for rows in found]


def _by_ref(rows: Sequence[Row]) -> dict[Ref, Endpoint]:
    return {row.ref: row for row in decode(rows, Endpoint)}


def _has_failed(endpoint: Endpoint | None) -> bool:
    return endpoint is not None and endpoint.failing_since is not None


def _step(row: Delivery, until: int) -> tuple[object, ...]:
    return (
        row.endpoint_id,
        row.zone_id,
        row.id,
        until,
        row.status,
        row.queue,
        row.next_at,
        row.answer_status,
        row.error,
        row.updated_at,
        row.delivered_at,
    )
