"""Sweeps of agents.

| sweep                     | finds                                         | does                                    |
|---------------------------|-----------------------------------------------|-----------------------------------------|
| agent-heartbeat-retention | stored heartbeats older than an hour          | deletes the rows, oldest first          |
| agent-retention           | agents terminated long ago that no task names | deletes the rows, under the zone's lock |

No sweep checks for stale agents: the coordinator does that when a check is due.

Terminated agents are kept as long as ended tasks, and longer while a task refers to them. `agent-retention` reads the
whole table in slices and then starts again, as the retention sweep of tasks does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.ids import Ref, lowest_id_at
from quarterdeck.domain.agents.model import HISTORY_RETENTION_MS, DeleteAgent, DeleteAgentResult
from quarterdeck.domain.agents.queries import Q
from quarterdeck.engine.sweep_passes import (
    ROWS_PER_SCAN,
    SLICE,
    Pass,
    Position,
    delete_past_retention,
    scan,
    submit_all,
)
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction

HEARTBEAT_RETENTION = "agent-heartbeat-retention"
AGENT_RETENTION = "agent-retention"
BATCH = 2_000
FindReferenced = Callable[[Transaction, Sequence[Ref]], Awaitable[set[Ref]]]
"""Returns the agents that stored tasks refer to. Injected, because tasks are a layer above agents."""


def sweeps(cross_zone_engine: Engine, retention_ms: Millis = HISTORY_RETENTION_MS) -> list[Sweep]:
    run_once = delete_past_retention(
        cross_zone_engine,
        retention_ms,
        lambda before, limit: [Q.agent_heartbeats_delete_expired(before=lowest_id_at(before), limit=limit)],
    )
    return [Sweep(HEARTBEAT_RETENTION, MINUTE, BATCH, run_once)]


class _AgentRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    id: str
    terminated_at: Millis | None


START = _AgentRow("", "", None)


@dataclass(slots=True)
class AgentRetention:
    cross_zone_engine: Engine
    submit: Callable[[DeleteAgent], Awaitable[DeleteAgentResult]]
    find_referenced: FindReferenced
    retention_ms: Millis
    run_once: Pass = field(init=False)

    def __post_init__(self) -> None:
        self.run_once = scan(START, self._process_slice)

    def sweep(self, interval_ms: int) -> Sweep:
        return Sweep(AGENT_RETENTION, interval_ms, ROWS_PER_SCAN, self.run_once)

    async def _process_slice(self, position: Position[_AgentRow]) -> int:
        commands = await self.cross_zone_engine.read(lambda tx: self._next_slice(tx, position))
        return sum(result.is_deleted for result in await submit_all(self.submit, commands, BATCH))

    async def _next_slice(self, tx: Transaction, position: Position[_AgentRow]) -> list[DeleteAgent]:
        agents = await tx.fetch(
            _AgentRow, Q.agents_slice(zone_id=position.value.zone_id, id=position.value.id, limit=SLICE)
        )
        position.advance(agents)
        before = tx.now - self.retention_ms
        candidates = [(agent.zone_id, agent.id) for agent in agents if (agent.terminated_at or before) < before]
        referenced = await self.find_referenced(tx, candidates) if candidates else set()
        return [
            DeleteAgent(zone_id=ref[0], agent_id=ref[1], before=before) for ref in candidates if ref not in referenced
        ]
