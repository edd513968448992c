"""Retention: agents that were terminated long ago are removed, with what was heard of them.

Under the zone's lock: whoever registers one again must find it there or not, and not lose it in between.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.model import Forget, Forgotten
from quarterdeck.domain.agents.operations.load import Batch
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx

_names = msgspec.json.Decoder(list[str]).decode


async def forget(tx: Tx, asks: Sequence[Forget]) -> list[Forgotten | Problem | Busy]:
    [zone_rows] = await tx.read(zones.lock(tx, zones_of(asks)))
    locked = zones.locked(zone_rows)
    why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
    old: Batch = [*sorted({(*ask.ref, ask.before) for ask in asks if ask.zone_id in locked})]
    _, gone = await tx.read(Q.agent_pulses_lock(batch=[row[:2] for row in old]), Q.agents_forget(batch=old))
    removed = {(str(zone_id), str(agent_id)): _names(str(can)) for zone_id, agent_id, can in gone}
    if removed:
        refs: Batch = [*sorted(removed)]
        tx.write(Q.agent_pulses_forget(batch=refs))
        tx.write(Q.agent_heartbeats_forget_all(batch=refs))
        could: Batch = [(zone, name, agent) for (zone, agent), names in sorted(removed.items()) for name in names]
        if could:
            tx.write(Q.agent_capabilities_remove(batch=could))
    return [why_not.get(ask.zone_id) or Forgotten(ask.ref in removed) for ask in asks]
