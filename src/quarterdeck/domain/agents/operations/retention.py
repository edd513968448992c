"""Retention: deletes agents that were terminated long ago, with their pulses, heartbeats and capabilities.

Runs under the zone's lock, so that a concurrent registration either finds the agent or creates a new one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents.model import DeleteAgent, DeleteAgentResult
from quarterdeck.domain.agents.queries import Q
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction

_decode_capabilities = msgspec.json.Decoder(list[str]).decode


async def delete_past_retention(
    tx: Transaction, commands: Sequence[DeleteAgent]
) -> list[DeleteAgentResult | Problem | Busy]:
    locked, _ = await access.lock(tx, commands)
    batch = sorted({(*command.ref, command.before) for command in commands if command.zone_id in locked.zones})
    _, deleted_rows = await tx.read(
        Q.agent_pulses_lock(batch=[row[:2] for row in batch]), Q.agents_delete_expired(batch=batch)
    )
    capabilities_by_ref = {
        (str(zone_id), str(agent_id)): _decode_capabilities(str(capabilities))
        for zone_id, agent_id, capabilities in deleted_rows
    }
    if capabilities_by_ref:
        refs = sorted(capabilities_by_ref)
        tx.write(Q.agent_pulses_delete(batch=refs))
        tx.write(Q.agent_heartbeats_delete_of_agents(batch=refs))
        capability_rows = [
            (zone_id, capability, agent_id)
            for (zone_id, agent_id), capabilities in sorted(capabilities_by_ref.items())
            for capability in capabilities
        ]
        if capability_rows:
            tx.write(Q.agent_capabilities_delete(batch=capability_rows))
    return [
        locked.lock_failures.get(command.zone_id) or DeleteAgentResult(command.ref in capabilities_by_ref)
        for command in commands
    ]
