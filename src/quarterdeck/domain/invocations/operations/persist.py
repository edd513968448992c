"""Writes the rows that a batch changed, and builds its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.batch_rows import PendingEvent
from quarterdeck.domain.invocations.model import Invocation, OpenInvocation, State
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.sql import BoundStatement, chunks


def insert_rows(tx: Transaction, rows: Sequence[Invocation]) -> None:
    for piece in chunks([msgspec.structs.astuple(row) for row in rows]):
        tx.write(Q.invocations_insert(batch=piece))


async def update_rows(tx: Transaction, changes: Iterable[tuple[Invocation, Invocation]]) -> None:
    """`changes` are (before, after) pairs. Raises RuntimeError if another transaction has changed one of the rows."""
    batch = [
        (
            after.zone_id,
            after.id,
            before.status,
            before.attempts,
            after.status,
            after.attempts,
            after.result_json,
            after.error_json,
            after.parked,
            after.available_at,
            after.deadline_at,
            after.lease_expires_at,
            after.attempt_token,
            after.begun_by,
            after.holder,
            after.claim_id,
            after.cancel_requested_at,
            after.cancel_reason,
            after.started_at,
            after.completed_at,
            after.updated_at,
        )
        for before, after in changes
    ]
    for piece in chunks(batch):
        await update_checked(tx, Q.invocations_update(batch=piece), len(piece))


async def update_checked(tx: Transaction, statement: BoundStatement, expected_count: int) -> None:
    [rows] = await tx.read(statement)
    if len(rows) != expected_count:
        raise RuntimeError("invocations were changed by another transaction despite the zone's lock")


def to_new_event(pending: PendingEvent[Invocation]) -> NewEvent:
    row = pending.row
    data = _event_data(row)
    if pending.type == "invocation.created":
        data |= {"idempotency_key": row.idempotency_key, "max_attempts": row.max_attempts}
    elif pending.type == "invocation.started":
        data |= {"holder": row.holder, "begun_by": row.begun_by, "deadline_at": row.deadline_at}
    elif row.status is State.PENDING:
        data["available_at"] = row.available_at
    encoded = msgspec.json.encode({**data, **pending.data}).decode()
    trace = pending.trace or row.trace
    return NewEvent(pending.type, row.zone_id, row.id, pending.actor, pending.from_state, row.status, encoded, trace)


def canceled_event(row: OpenInvocation, reason: str, actor: str, trace: str | None) -> NewEvent:
    """The event for an invocation that is canceled because its session or service ended."""
    data = msgspec.json.encode({**_event_data(row), "reason": reason}).decode()
    return NewEvent("invocation.canceled", row.zone_id, row.id, actor, row.status, State.CANCELED, data, trace)


def _event_data(row: Invocation | OpenInvocation) -> dict[str, object]:
    """The data that all events of an invocation have in common."""
    return {
        "service_id": row.service_id,
        "application_id": row.application_id,
        "method": row.method,
        "source_session_id": row.source_session_id,
        "target_session_id": row.target_session_id,
        "attempt": row.attempts,
    }
