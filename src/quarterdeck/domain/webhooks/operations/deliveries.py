"""Claims due deliveries and records the outcomes of attempts.

These operations do not take the zone's lock, which a busy zone needs for other commands. A lease guards each delivery.
A report updates its endpoint with one guarded statement.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.webhooks.model import (
    ClaimDeliveries,
    ClaimedDeliveries,
    Delivery,
    Endpoint,
    FailPending,
    FailPendingResult,
    ReportAttempt,
    ReportResult,
)
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.webhooks.rules import states
from quarterdeck.domain.webhooks.rules.states import FailurePolicy
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode

DeliveryKey = tuple[str, str, str]
"""(endpoint id, zone id, event id)"""
DeliveryUpdate = tuple[str, str, str, int, str, str | None, int | None, int | None, str | None, int, int | None]
"""A row of `webhook_deliveries_report`."""


async def claim_deliveries(
    tx: Transaction, commands: Sequence[ClaimDeliveries]
) -> list[ClaimedDeliveries | Problem | Busy]:
    """Lease due deliveries, except those of disabled endpoints."""
    # Two commands for the same endpoint read the same rows; the first command gets them.
    refs = sorted({(command.zone_id, command.endpoint_id) for command in commands})
    due_statements = [
        Q.webhook_deliveries_due(queue=command.endpoint_id, zone_id=command.zone_id, limit=command.limit)
        for command in commands
    ]
    endpoint_rows, *due_rows = await tx.read(Q.webhooks_get(batch=refs), *due_statements)
    endpoints = _endpoints_by_ref(endpoint_rows)
    outcomes: list[ClaimedDeliveries | Problem | Busy] = []
    leases: dict[DeliveryKey, tuple[str, str, str, int | None, int]] = {}
    for command, rows in zip(commands, due_rows, strict=True):
        endpoint = endpoints.get((command.zone_id, command.endpoint_id))
        claimed = []
        for row in decode(rows, Delivery) if endpoint is not None and endpoint.enabled else []:
            key = (row.endpoint_id, row.zone_id, row.id)
            if key in leases:
                continue
            lease_expires_at = tx.now + command.lease_ms
            leases[key] = (*key, row.next_at, lease_expires_at)
            claimed.append(msgspec.structs.replace(row, attempts=row.attempts + 1, next_at=lease_expires_at))
        outcomes.append(ClaimedDeliveries(endpoint, tuple(claimed), tx.now))
    if leases:
        tx.write(Q.webhook_deliveries_claim(batch=[lease for _, lease in sorted(leases.items())], now=tx.now))
    return outcomes


class AttemptReporter:
    """Records the outcomes of attempts."""

    def __init__(self, failure_policy: FailurePolicy) -> None:
        self._failure_policy = failure_policy

    async def report(self, tx: Transaction, commands: Sequence[ReportAttempt]) -> list[ReportResult | Problem | Busy]:
        delivery_keys = sorted({(command.endpoint_id, command.zone_id, command.id) for command in commands})
        refs = sorted({(command.zone_id, command.endpoint_id) for command in commands})
        endpoint_rows, rows = await tx.read(Q.webhooks_get(batch=refs), Q.webhook_deliveries_get(batch=delivery_keys))
        endpoints = _endpoints_by_ref(endpoint_rows)
        deliveries = {(row.endpoint_id, row.zone_id, row.id): row for row in decode(rows, Delivery)}
        updates: dict[DeliveryKey, DeliveryUpdate] = {}
        current_reports: list[ReportAttempt] = []
        for command in commands:
            key = (command.endpoint_id, command.zone_id, command.id)
            row = deliveries.get(key)
            if row is not None and row.next_at == command.lease_expires_at:
                updates[key] = _update_row(
                    states.apply_report(row, command, tx.now, self._failure_policy.schedule), command.lease_expires_at
                )
                current_reports.append(command)
        self._record_failures(tx, current_reports, endpoints)
        updated: set[tuple[object, ...]] = set()
        if updates:
            [updated_rows] = await tx.read(
                Q.webhook_deliveries_report(batch=[update for _, update in sorted(updates.items())])
            )
            updated = {tuple(updated_row) for updated_row in updated_rows}
        return [self._report_result(tx, command, endpoints, updated) for command in commands]

    def _record_failures(
        self, tx: Transaction, commands: Sequence[ReportAttempt], endpoints: dict[Ref, Endpoint]
    ) -> None:
        """Update `failing_since`. An endpoint with at least one success in the batch is not failing."""
        succeeded_refs = {(command.zone_id, command.endpoint_id) for command in commands if command.error is None}
        failed_refs = {(command.zone_id, command.endpoint_id) for command in commands} - succeeded_refs
        if recovered := sorted(ref for ref in succeeded_refs if _is_failing(endpoints.get(ref))):
            tx.write(Q.webhooks_clear_failing(batch=[*recovered]))
        if failing := sorted(ref for ref in failed_refs if not _is_failing(endpoints.get(ref))):
            tx.write(Q.webhooks_mark_failing(batch=[*failing], now=tx.now))

    def _report_result(
        self, tx: Transaction, command: ReportAttempt, endpoints: dict[Ref, Endpoint], updated: set[tuple[object, ...]]
    ) -> ReportResult:
        endpoint = endpoints.get((command.zone_id, command.endpoint_id))
        is_current = (command.endpoint_id, command.zone_id, command.id) in updated
        if endpoint is None or not is_current:
            return ReportResult(is_current)
        return ReportResult(
            is_current, states.disable_reason(endpoint, command, tx.now, self._failure_policy.max_failing_ms)
        )


async def fail_pending_deliveries(
    tx: Transaction, commands: Sequence[FailPending]
) -> list[FailPendingResult | Problem | Busy]:
    """Fail up to `limit` pending deliveries of each disabled endpoint."""
    # An empty read sets `tx.now` to the database's time.
    await tx.read()
    results = await tx.read(
        *(
            Q.webhook_deliveries_fail_pending(
                queue=command.endpoint_id,
                zone_id=command.zone_id,
                limit=command.limit,
                error=states.ENDPOINT_DISABLED,
                now=tx.now,
            )
            for command in commands
        )
    )
    return [FailPendingResult(len(rows)) for rows in results]


def _endpoints_by_ref(rows: Sequence[Row]) -> dict[Ref, Endpoint]:
    return {row.ref: row for row in decode(rows, Endpoint)}


def _is_failing(endpoint: Endpoint | None) -> bool:
    return endpoint is not None and endpoint.failing_since is not None


def _update_row(row: Delivery, lease_expires_at: int) -> DeliveryUpdate:
    return (
        row.endpoint_id,
        row.zone_id,
        row.id,
        lease_expires_at,
        row.status,
        row.queue,
        row.next_at,
        row.answer_status,
        row.error,
        row.updated_at,
        row.delivered_at,
    )
