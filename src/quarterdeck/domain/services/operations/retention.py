"""Deletes services that were unregistered long ago.

Takes the zone's lock, because a registration can reactivate a service. The service must not be deleted between the
moment a registration finds it and the commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.services.model import DeleteResult, DeleteService
from quarterdeck.domain.services.queries import Q
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction


async def delete_past_retention(
    tx: Transaction, commands: Sequence[DeleteService]
) -> list[DeleteResult | Problem | Busy]:
    locked, _ = await access.lock(tx, commands)
    batch = sorted(
        {
            (command.zone_id, command.service_id, command.before)
            for command in commands
            if command.zone_id in locked.zones
        }
    )
    [deleted_rows] = await tx.read(Q.services_delete_expired(batch=batch))
    deleted = {(str(zone_id), str(service_id)) for zone_id, service_id in deleted_rows}
    return [
        locked.lock_failures.get(command.zone_id) or DeleteResult((command.zone_id, command.service_id) in deleted)
        for command in commands
    ]
