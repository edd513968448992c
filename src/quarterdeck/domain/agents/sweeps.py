"""The sweeps of agents.

| sweep                     | finds                                          | does                               |
|---------------------------|------------------------------------------------|------------------------------------|
| agent-heartbeat-retention | heartbeats that were kept for an hour          | removes the rows, the oldest first |
| agent-retention           | who was terminated long ago, and no task names | removes the rows, under the lock   |

Whether agents are still heard of is nothing that is swept for: whoever coordinates looks when it is time to.

Agents that are terminated are kept as long as tasks that are over, and longer where such a task still says who has
worked on it. They are looked for by walking round and round the table in slices, as tasks are. The place that was come
to is kept in this process only: losing it costs a walk from the beginning, and several walkers at once remove nothing
that one of them would not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.errors import NotFound
from quarterdeck.core.ids import first_id
from quarterdeck.domain.agents.model import KEPT_FOR, Forget, Forgotten, Ref
from quarterdeck.domain.agents.queries import Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import decode

RETENTION = "agent-heartbeat-retention"
AGENT_RETENTION = "agent-retention"
BATCH = 2_000
SLICE = 5_000
"""Agents that one statement looks at."""
SLICES_MAX = 100
BEGINNING: Ref = ("", "")
Named = Callable[[Tx, Sequence[Ref]], Awaitable[set[Ref]]]
"""Those of them that something which is kept names. The rooms above know what does."""


def sweeps(everywhere: Engine, kept_for: Millis = KEPT_FOR) -> list[Sweep]:
    async def forget(tx: Tx, batch: int) -> int:
        # A read of nothing but the clock: what is old is decided by the database's time.
        await tx.read()
        [gone] = await tx.read(Q.agent_heartbeats_forget(before=first_id(tx.now - kept_for), limit=batch))
        return len(gone)

    async def run_once(batch: int) -> int:
        return await everywhere.transact(lambda tx: forget(tx, batch))

    return [Sweep(RETENTION, MINUTE, BATCH, run_once)]


class _Seen(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    id: str
    terminated_at: Millis | None


@dataclass(slots=True)
class AgentRetention:
    everywhere: Engine
    submit: Callable[[Forget], Awaitable[Forgotten]]
    named: Named
    kept_for: Millis
    _place: Ref = BEGINNING

    def sweep(self, every_ms: int) -> Sweep:
        return Sweep(AGENT_RETENTION, every_ms, SLICE * SLICES_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        gone = 0
        for _ in range(SLICES_MAX):
            asks = await self.everywhere.read(self._slice)
            for begin in range(0, len(asks), BATCH):
                gone += await self._forget(asks[begin : begin + BATCH])
            if self._place == BEGINNING:
                break
        return gone

    async def _slice(self, tx: Tx) -> list[Forget]:
        zone_id, agent_id = self._place
        [rows] = await tx.read(Q.agents_slice(zone_id=zone_id, id=agent_id, limit=SLICE))
        seen = decode(rows, _Seen)
        self._place = (seen[-1].zone_id, seen[-1].id) if len(seen) == SLICE else BEGINNING
        before = tx.now - self.kept_for
        old = [(each.zone_id, each.id) for each in seen if (each.terminated_at or before) < before]
        needed = await self.named(tx, old) if old else set()
        return [Forget(zone_id=ref[0], agent_id=ref[1], before=before) for ref in old if ref not in needed]

    async def _forget(self, asks: Sequence[Forget]) -> int:
        gone = 0
        for outcome in await asyncio.gather(*map(self.submit, asks), return_exceptions=True):
            # A zone that is gone has nothing to be removed from; anything else is worth a failed pass.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                raise outcome
            gone += isinstance(outcome, Forgotten) and outcome.is_gone
        return gone
