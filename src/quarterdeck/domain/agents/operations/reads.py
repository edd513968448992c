"""Reads of agents: show, list, count and health history. Reads across zones of agents that have a launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents.model import (
    HEALTH_HEARTBEATS_MAX,
    Agent,
    AgentFilter,
    AgentHistory,
    AgentResult,
    AgentStatus,
    Heartbeat,
    ShowAgent,
    State,
)
from quarterdeck.domain.agents.operations.load import decode_agents, sorted_refs
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import errors
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy, require_result
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode

READ_PERMISSION = "agents.read"


async def show_agents(tx: Transaction, commands: Sequence[ShowAgent]) -> list[AgentResult | Problem | Busy]:
    batch, [rows] = await access.load_with_roles(tx, commands, Q.agents_get(batch=sorted_refs(commands)))
    agents = decode_agents(rows)
    outcomes: list[AgentResult | Problem | Busy] = []
    for command in commands:
        agent = (
            batch.permission_problem(command, READ_PERMISSION)
            or agents.get(command.ref)
            or errors.agent_not_found(command.agent_id)
        )
        outcomes.append(AgentResult(agent, tx.now) if isinstance(agent, Agent) else agent)
    return outcomes


async def load_history(tx: Transaction, command: ShowAgent) -> AgentHistory:
    """Load an agent with its last stored heartbeats."""
    [outcome] = await show_agents(tx, [command])
    result = require_result(outcome)
    [rows] = await tx.read(
        Q.agent_heartbeats_recent(zone_id=command.zone_id, agent_id=command.agent_id, limit=HEALTH_HEARTBEATS_MAX)
    )
    return AgentHistory(result.agent, result.at, tuple(decode(rows, Heartbeat)))


async def list_agents(tx: Transaction, filters: AgentFilter) -> list[Agent]:
    """Return up to `limit` agents, ordered by id."""
    await access.require_permission(tx, filters.caller, filters.zone_id, READ_PERMISSION)
    enabled = filters.coordinator_enabled
    [rows] = await tx.read(
        Q.agents_page(
            zone_id=filters.zone_id,
            after=filters.after,
            enabled=None if enabled is None else int(enabled),
            status=filters.status,
            capability=filters.capability,
            limit=filters.limit,
        )
    )
    if not rows:
        await zones.require_zone(tx, filters.zone_id)
    return decode(rows, Agent)


async def count_by_status(tx: Transaction, zone_id: str) -> dict[AgentStatus, int]:
    """Count the agents of a zone by displayed status. This reads every agent, so call it rarely."""
    [rows] = await tx.read(Q.agents_count(zone_id=zone_id))
    return {AgentStatus(str(status)): int(str(count)) for status, count in rows}


async def list_agent_ids(tx: Transaction, zone_id: str, *, after: str, limit: int) -> list[str]:
    """Return the next agent ids of a zone after an id, terminated agents included. For the Redis mirror."""
    [rows] = await tx.read(Q.agents_list_ids(zone_id=zone_id, after=after, limit=limit))
    return [str(row[0]) for row in rows]


async def list_launch_zones(tx: Transaction, after: Mapping[str, str], limit: int) -> list[tuple[str, str]]:
    """Return (launcher, zone id) pairs that have agents. `after` maps each launcher to the zone to continue after."""
    batch = sorted(after.items())
    [rows] = await tx.read(Q.agents_launch_zones(batch=batch, limit=limit))
    return [(str(launcher), str(zone_id)) for launcher, zone_id in rows]


async def list_launchable(tx: Transaction, launcher_zones: Sequence[tuple[str, str]], limit: int) -> list[Agent]:
    """Return the IDLE agents of these (launcher, zone id) pairs that have a free slot and accept tasks."""
    batch = [(*launcher_zone, State.IDLE, 1, 0) for launcher_zone in sorted(set(launcher_zones))]
    return await tx.fetch(Agent, Q.agents_launchable(batch=batch, limit=limit))
