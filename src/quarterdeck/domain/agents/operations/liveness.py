"""Updates the status of agents, and terminates them, under the zone's lock."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import Agent, AgentAt, LivenessDue, Ref, RefreshStatus, Terminate
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.load import AgentBatchInput, load
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import AgentChange
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode

TERMINATE_PERMISSION = "agents.terminate"


async def refresh_status(tx: Transaction, commands: Sequence[RefreshStatus]) -> list[AgentAt | Problem | Busy]:
    """Update the status of agents from their last heartbeats.

    The result does not depend on the caller, and an additional check changes nothing, so it needs no lease. A heartbeat
    that commits while this waits for the row is taken into account.
    """
    loaded = await load(tx, commands)
    changes: dict[Ref, tuple[Agent, Agent]] = {}
    outcomes: list[AgentAt | Problem | Busy] = []
    for command in commands:
        agent = sessions.blocked(command, loaded.lock_failures) or loaded.find_agent(command)
        if isinstance(agent, Agent):
            agent = _record_change(tx, loaded, changes, rules.evaluate_liveness(agent, tx.now), command)
        outcomes.append(AgentAt(agent, tx.now) if isinstance(agent, Agent) else agent)
    await persist.update_agents(tx, changes)
    return outcomes


async def terminate_agents(tx: Transaction, commands: Sequence[Terminate]) -> list[AgentAt | Problem | Busy]:
    """Terminate agents, at once or with their last task. A repeated command changes nothing.

    Agents of fleet members can only be terminated by the server.
    """
    loaded = await load(tx, commands)
    changes: dict[Ref, tuple[Agent, Agent]] = {}
    outcomes: list[AgentAt | Problem | Busy] = []
    for command in commands:
        agent = (
            loaded.problem(command, TERMINATE_PERMISSION)
            or _acting_problem(command, loaded)
            or loaded.find_agent(command)
        )
        if isinstance(agent, Agent):
            agent = rules.termination_problem(command, agent) or agent
        if isinstance(agent, Agent):
            change = rules.terminate(agent, command.reason, tx.now, graceful=command.graceful)
            agent = _record_change(tx, loaded, changes, change, command)
        outcomes.append(AgentAt(agent, tx.now) if isinstance(agent, Agent) else agent)
    await persist.update_agents(tx, changes)
    return outcomes


def _acting_problem(command: Terminate, loaded: AgentBatchInput) -> Problem | None:
    return rules.acting_agent_problem(command.caller, loaded.role(command), command.agent_id)


def _record_change(
    tx: Transaction,
    loaded: AgentBatchInput,
    changes: dict[Ref, tuple[Agent, Agent]],
    change: AgentChange,
    command: RefreshStatus | Terminate,
) -> Agent:
    """Record a change. The first value of an agent is the one before the batch."""
    first = changes.get(command.ref, (change.before, change.before))[0]
    changes[command.ref] = (first, change.after)
    loaded.agents[command.ref] = change.after
    persist.emit_change(tx, change, command.actor, command.trace)
    return change.after


async def list_liveness_due(tx: Transaction, limit: int, zone_id: str | None = None) -> list[LivenessDue]:
    """Agents whose check is due, in all zones or in one, the longest due first."""
    [rows] = await tx.read(Q.agents_liveness_due(limit=limit, zone_id=zone_id))
    return decode(rows, LivenessDue)


async def next_liveness_due(tx: Transaction) -> Millis | None:
    """Milliseconds until the next check is due, or None."""
    [[row]] = await tx.read(Q.agents_next_liveness_due())
    look_at, now = row
    return None if look_at is None else max(0, int(str(look_at)) - int(str(now)))


async def count_stale(tx: Transaction) -> int:
    """Count the stale agents of all zones."""
    [[row]] = await tx.read(Q.agents_in_error_count())
    return int(str(row[0]))
