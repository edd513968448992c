"""Writes the rows that a batch changed, and builds its events."""

from __future__ import annotations

import msgspec

from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules.states import BatchChanges, PendingEvent
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.sql import BoundStatement, chunks

UNREGISTERED = "unregistered"
"""The new state in the event of an unregistered service. In other events the state is the health."""


async def write_services(tx: Transaction, changes: BatchChanges) -> None:
    if inserts := changes.inserts():
        tx.write(Q.services_insert(batch=[msgspec.structs.astuple(service)[:-1] for service in inserts]))
    update_batch = [
        (
            after.zone_id,
            after.id,
            before.unregistered_at or 0,
            after.agent_id,
            after.protocol_versions,
            after.framework_name,
            after.framework_version,
            after.capabilities,
            after.health,
            after.metadata_json,
            after.delivery,
            after.secret_number,
            after.active_invocations,
            after.last_heartbeat_at,
            after.unregistered_at,
            after.updated_at,
        )
        for before, after in changes.updates()
    ]
    for piece in chunks(update_batch):
        await update_checked(tx, Q.services_update(batch=piece), len(piece))


async def update_checked(tx: Transaction, statement: BoundStatement, expected: int) -> None:
    [rows] = await tx.read(statement)
    if len(rows) != expected:
        raise RuntimeError("services were changed by another transaction despite the zone's lock")


def to_new_event(pending: PendingEvent, actor: str, trace: str | None) -> NewEvent:
    service, before = pending.service, pending.before
    data: dict[str, object] = {"application_id": service.application_id, "agent_id": service.agent_id}
    if pending.verb == "register":
        data |= {"endpoint_url": service.endpoint_url, "delivery": service.delivery}
    if pending.changed_fields:
        data["changed"] = pending.changed_fields
    if pending.reason is not None:
        data["reason"] = pending.reason
    return NewEvent(
        f"service.{pending.verb}",
        service.zone_id,
        service.id,
        actor,
        before.health if before else None,
        UNREGISTERED if pending.verb == "unregister" else service.health,
        msgspec.json.encode(data).decode(),
        trace,
    )
