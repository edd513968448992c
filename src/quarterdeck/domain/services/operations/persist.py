"""Rows and events of what was decided, set by set."""

from __future__ import annotations

import msgspec

from quarterdeck.domain.services.model import Service
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules import Shelf, Told
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.sql import Bound, pieces

UNREGISTERED = "unregistered"
Batch = list[tuple[object, ...]]


async def write(tx: Tx, shelf: Shelf) -> None:
    """What a batch has made of services."""
    if made := shelf.made():
        tx.write(Q.services_insert(batch=[msgspec.structs.astuple(service)[:-1] for service in made]))
    for piece in pieces([_moved(before, after) for before, after in shelf.moved()]):
        await moved(tx, Q.services_update(batch=piece), len(piece))


async def moved(tx: Tx, statement: Bound, number: int) -> None:
    [rows] = await tx.read(statement)
    if len(rows) != number:
        raise RuntimeError("services moved under the zone's lock")


def _moved(before: Service, after: Service) -> tuple[object, ...]:
    return (
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


def event(told: Told, actor: str, trace: str | None) -> NewEvent:
    service, before = told.service, told.before
    data: dict[str, object] = {"application_id": service.application_id, "agent_id": service.agent_id}
    if told.verb == "register":
        data |= {"endpoint_url": service.endpoint_url, "delivery": service.delivery}
    if told.changed:
        data["changed"] = told.changed
    if told.reason is not None:
        data["reason"] = told.reason
    return NewEvent(
        f"service.{told.verb}",
        service.zone_id,
        service.id,
        actor,
        before.health if before else None,
        UNREGISTERED if told.verb == "unregister" else service.health,
        msgspec.json.encode(data).decode(),
        trace,
    )
