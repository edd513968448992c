"""The sweep of agents.

| sweep                     | finds                                        | does                          |
|---------------------------|----------------------------------------------|-------------------------------|
| agent-heartbeat-retention | heartbeats that were kept for an hour         | removes the rows, the oldest first |

Whether agents are still heard of is nothing that is swept for: whoever coordinates looks when it is time to.
"""

from __future__ import annotations

from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.ids import first_id
from quarterdeck.domain.agents.model import KEPT_FOR
from quarterdeck.domain.agents.queries import Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.tx import Engine, Tx

RETENTION = "agent-heartbeat-retention"
BATCH = 2_000


def sweeps(everywhere: Engine, kept_for: Millis = KEPT_FOR) -> list[Sweep]:
    async def forget(tx: Tx, batch: int) -> int:
        # A read of nothing but the clock: what is old is decided by the database's time.
        await tx.read()
        [gone] = await tx.read(Q.agent_heartbeats_forget(before=first_id(tx.now - kept_for), limit=batch))
        return len(gone)

    async def run_once(batch: int) -> int:
        return await everywhere.transact(lambda tx: forget(tx, batch))

    return [Sweep(RETENTION, MINUTE, BATCH, run_once)]
