"""Deletes services that were unregistered long ago.

Takes the zone's lock, because a registration can reactivate a service. The service must not be deleted between the
moment a registration finds it and the commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.services.model import DeleteResult, DeleteService
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Transaction


async def delete_past_retention(
    tx: Transaction, commands: Sequence[DeleteService]
) -> list[DeleteResult | Problem | Busy]:
    [rows] = await tx.read(zones.lock_statement(tx, zones_of(commands)))
    locked = zones.decode_zones(rows)
    lock_failures = await zones.lock_failures(tx, zones_of(commands) - locked.keys())
    batch = sorted(
        {(command.zone_id, command.service_id, command.before) for command in commands if command.zone_id in locked}
    )
    [deleted_rows] = await tx.read(Q.services_delete_expired(batch=batch))
    deleted = {(str(zone_id), str(service_id)) for zone_id, service_id in deleted_rows}
    return [
        lock_failures.get(command.zone_id) or DeleteResult((command.zone_id, command.service_id) in deleted)
        for command in commands
    ]
