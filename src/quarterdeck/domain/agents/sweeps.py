"""Sweeps of agents.

| sweep                     | finds                                         | does                                    |
|---------------------------|-----------------------------------------------|-----------------------------------------|
| agent-heartbeat-retention | stored heartbeats older than an hour          | deletes the rows, oldest first          |
| agent-retention           | agents terminated long ago that no task names | deletes the rows, under the zone's lock |

No sweep checks for stale agents: the coordinator does that when a check is due.

Terminated agents are kept as long as ended tasks, and longer while a task refers to them. `agent-retention` reads the
whole table in slices and then starts again, as the retention sweep of tasks does. Its position is kept in memory only,
so it starts from the beginning after a restart. Several processes may run it at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.errors import NotFound
from quarterdeck.core.ids import lowest_id_at
from quarterdeck.domain.agents.model import HISTORY_RETENTION_MS, DeleteAgent, DeleteAgentResult, Ref
from quarterdeck.domain.agents.queries import Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import decode

HEARTBEAT_RETENTION = "agent-heartbeat-retention"
AGENT_RETENTION = "agent-retention"
BATCH = 2_000
SLICE = 5_000
"""Number of agents that one statement reads."""
SLICES_MAX = 100
START: Ref = ("", "")
FindReferenced = Callable[[Transaction, Sequence[Ref]], Awaitable[set[Ref]]]
"""Returns the agents that stored tasks refer to. Injected, because tasks are a layer above agents."""


def sweeps(cross_zone_engine: Engine, retention_ms: Millis = HISTORY_RETENTION_MS) -> list[Sweep]:
    async def delete_past_retention(tx: Transaction, batch: int) -> int:
        # An empty read sets `tx.now`, so that the database's clock decides what is old.
        await tx.read()
        [deleted] = await tx.read(
            Q.agent_heartbeats_delete_expired(before=lowest_id_at(tx.now - retention_ms), limit=batch)
        )
        return len(deleted)

    async def run_once(batch: int) -> int:
        return await cross_zone_engine.transact(lambda tx: delete_past_retention(tx, batch))

    return [Sweep(HEARTBEAT_RETENTION, MINUTE, BATCH, run_once)]


class _AgentRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    id: str
    terminated_at: Millis | None


@dataclass(slots=True)
class AgentRetention:
    cross_zone_engine: Engine
    submit: Callable[[DeleteAgent], Awaitable[DeleteAgentResult]]
    find_referenced: FindReferenced
    retention_ms: Millis
    _position: Ref = START

    def sweep(self, interval_ms: int) -> Sweep:
        return Sweep(AGENT_RETENTION, interval_ms, SLICE * SLICES_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        deleted = 0
        for _ in range(SLICES_MAX):
            commands = await self.cross_zone_engine.read(self._next_slice)
            for start in range(0, len(commands), BATCH):
                deleted += await self._delete(commands[start : start + BATCH])
            if self._position == START:
                break
        return deleted

    async def _next_slice(self, tx: Transaction) -> list[DeleteAgent]:
        zone_id, agent_id = self._position
        [rows] = await tx.read(Q.agents_slice(zone_id=zone_id, id=agent_id, limit=SLICE))
        agents = decode(rows, _AgentRow)
        self._position = (agents[-1].zone_id, agents[-1].id) if len(agents) == SLICE else START
        before = tx.now - self.retention_ms
        candidates = [(agent.zone_id, agent.id) for agent in agents if (agent.terminated_at or before) < before]
        referenced = await self.find_referenced(tx, candidates) if candidates else set()
        return [
            DeleteAgent(zone_id=ref[0], agent_id=ref[1], before=before) for ref in candidates if ref not in referenced
        ]

    async def _delete(self, commands: Sequence[DeleteAgent]) -> int:
        deleted = 0
        for outcome in await asyncio.gather(*map(self.submit, commands), return_exceptions=True):
            # NotFound is ignored: the zone was deleted after the agent was read. All other errors fail the pass.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                raise outcome
            deleted += isinstance(outcome, DeleteAgentResult) and outcome.is_deleted
        return deleted
