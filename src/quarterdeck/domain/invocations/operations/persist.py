"""Rows and events of what was decided, set by set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.domain.invocations.model import Invocation, Open, State
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules.decider import Told
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.sql import Bound, pieces


def insert(tx: Tx, rows: Sequence[Invocation]) -> None:
    for piece in pieces([msgspec.structs.astuple(row) for row in rows]):
        tx.write(Q.invocations_insert(batch=piece))


async def move(tx: Tx, steps: Iterable[tuple[Invocation, Invocation]]) -> None:
    """(before, after) of each. Whatever did not move was read without the zone's lock: nothing of it may be told."""
    for piece in pieces([_step(before, after) for before, after in steps]):
        await moved(tx, Q.invocations_move(batch=piece), len(piece))


async def moved(tx: Tx, statement: Bound, number: int) -> None:
    [rows] = await tx.read(statement)
    if len(rows) != number:
        raise RuntimeError("invocations moved under the zone's lock")


def _step(before: Invocation, row: Invocation) -> tuple[object, ...]:
    return (
        row.zone_id,
        row.id,
        before.status,
        before.attempts,
        row.status,
        row.attempts,
        row.result_json,
        row.error_json,
        row.parked,
        row.available_at,
        row.deadline_at,
        row.lease_expires_at,
        row.attempt_token,
        row.begun_by,
        row.holder,
        row.claim_id,
        row.cancel_requested_at,
        row.cancel_reason,
        row.started_at,
        row.completed_at,
        row.updated_at,
    )


def event(told: Told) -> NewEvent:
    row = told.row
    data = _named(row)
    if told.type == "invocation.created":
        data |= {"idempotency_key": row.idempotency_key, "max_attempts": row.max_attempts}
    elif told.type == "invocation.started":
        data |= {"holder": row.holder, "begun_by": row.begun_by, "deadline_at": row.deadline_at}
    elif row.status is State.PENDING:
        data["available_at"] = row.available_at
    if told.reason is not None:
        data["reason"] = told.reason
    return NewEvent(
        told.type,
        row.zone_id,
        row.id,
        told.actor,
        told.before,
        row.status,
        msgspec.json.encode(data).decode(),
        told.trace,
    )


def canceled(row: Open, reason: str, actor: str, trace: str | None) -> NewEvent:
    """The same for one of many that were canceled together."""
    data = msgspec.json.encode({**_named(row), "reason": reason}).decode()
    return NewEvent("invocation.canceled", row.zone_id, row.id, actor, row.status, State.CANCELED, data, trace)


def _named(row: Invocation | Open) -> dict[str, object]:
    """What every event of an invocation says of it."""
    return {
        "service_id": row.service_id,
        "application_id": row.application_id,
        "method": row.method,
        "source_session_id": row.source_session_id,
        "target_session_id": row.target_session_id,
        "attempt": row.attempts,
    }
