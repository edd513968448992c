"""Updates the status of agents, terminates and deletes them, under the zone's lock. Also finds due liveness checks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents.model import (
    Agent,
    AgentResult,
    DeleteAgent,
    DeleteAgentResult,
    DueLivenessCheck,
    RefreshStatus,
    Terminate,
)
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.load import LoadedAgents, load
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import errors, registration, states
from quarterdeck.domain.agents.rules.states import AgentChange
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction

TERMINATE_PERMISSION = "agents.terminate"
_decode_capabilities = msgspec.json.Decoder(list[str]).decode


async def refresh_status(tx: Transaction, commands: Sequence[RefreshStatus]) -> list[AgentResult | Problem | Busy]:
    """Update the status of agents from their last heartbeats.

    A repeated command changes nothing, so no lease is needed. A heartbeat that commits while this transaction waits for
    the agent's row is taken into account.
    """
    loaded = await load(tx, commands)
    changes: dict[Ref, tuple[Agent, Agent]] = {}
    outcomes: list[AgentResult | Problem | Busy] = []
    for command in commands:
        agent = loaded.batch.problem(command) or loaded.find_agent(command)
        if isinstance(agent, Agent):
            agent = _record_change(tx, loaded, changes, states.evaluate_liveness(agent, tx.now), command)
        outcomes.append(AgentResult(agent, tx.now) if isinstance(agent, Agent) else agent)
    await persist.update_agents(tx, changes)
    return outcomes


async def terminate_agents(tx: Transaction, commands: Sequence[Terminate]) -> list[AgentResult | Problem | Busy]:
    """Terminate agents, at once or after their last task. A repeated command changes nothing.

    Agents of fleet members can only be terminated by the server.
    """
    loaded = await load(tx, commands)
    changes: dict[Ref, tuple[Agent, Agent]] = {}
    outcomes: list[AgentResult | Problem | Busy] = []
    for command in commands:
        agent = (
            loaded.batch.permission_problem(command, TERMINATE_PERMISSION)
            or _acting_problem(command, loaded)
            or loaded.find_agent(command)
        )
        if isinstance(agent, Agent):
            agent = registration.termination_problem(command, agent) or agent
        if isinstance(agent, Agent):
            change = states.terminate(agent, command.reason, tx.now, graceful=command.graceful)
            agent = _record_change(tx, loaded, changes, change, command)
        outcomes.append(AgentResult(agent, tx.now) if isinstance(agent, Agent) else agent)
    await persist.update_agents(tx, changes)
    return outcomes


def _acting_problem(command: Terminate, loaded: LoadedAgents) -> Problem | None:
    return errors.acting_agent_problem(command.caller, loaded.batch.role(command), command.agent_id)


def _record_change(
    tx: Transaction,
    loaded: LoadedAgents,
    changes: dict[Ref, tuple[Agent, Agent]],
    change: AgentChange,
    command: RefreshStatus | Terminate,
) -> Agent:
    """Record a change as (agent before the batch, agent after its last command), and emit its event."""
    before_batch = changes.get(command.ref, (change.before, change.before))[0]
    changes[command.ref] = (before_batch, change.after)
    loaded.agents[command.ref] = change.after
    persist.emit_change(tx, change, command.actor, command.trace)
    return change.after


async def list_due_liveness_checks(tx: Transaction, limit: int, zone_id: str | None = None) -> list[DueLivenessCheck]:
    """Return agents whose check is due, in all zones or in one, the longest overdue first."""
    return await tx.fetch(DueLivenessCheck, Q.agents_liveness_due(limit=limit, zone_id=zone_id))


async def ms_until_liveness_check(tx: Transaction) -> Millis | None:
    """Milliseconds until the next check is due. None if no agent needs a check."""
    [[row]] = await tx.read(Q.agents_next_liveness_due())
    look_at, now = row
    return None if look_at is None else max(0, int(str(look_at)) - int(str(now)))


async def count_stale(tx: Transaction) -> int:
    """Count the stale agents of all zones."""
    [[row]] = await tx.read(Q.agents_in_error_count())
    return int(str(row[0]))


async def delete_past_retention(
    tx: Transaction, commands: Sequence[DeleteAgent]
) -> list[DeleteAgentResult | Problem | Busy]:
    """Delete agents that were terminated long ago, with their pulses, heartbeats and capabilities.

    Under the zone's lock, a concurrent registration either finds the agent or creates a new one.
    """
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
