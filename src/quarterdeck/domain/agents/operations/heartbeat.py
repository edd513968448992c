"""Records heartbeats.

Heartbeats are frequent, so they do not take the zone's lock. Each one locks and writes a narrow row of its agent, and
adds a history row if `rules.belongs_in_history`. Status changes that follow from a heartbeat (revived, degraded,
recovered) are decided under the zone's lock by a `RefreshStatus`, which the caller submits if the result has
`needs_refresh`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quarterdeck.core.clock import SECOND
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref, new_id
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents.model import Agent, HeartbeatResult, RecordHeartbeat, State
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.load import decode_agents, sorted_refs
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import errors, states
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction

HeartbeatListener = Callable[[Sequence[Agent]], None]


class HeartbeatRecorder:
    """Records heartbeats and calls the listeners of this process. Sinks cannot see heartbeats, which emit no events."""

    def __init__(self) -> None:
        self.listeners: list[HeartbeatListener] = []
        """Called after the commit with the updated agents."""

    async def record(
        self, tx: Transaction, commands: Sequence[RecordHeartbeat]
    ) -> list[HeartbeatResult | Problem | Busy]:
        """Record heartbeats, in order of arrival."""
        refs = sorted_refs(commands)
        # Callers are read after the wait for the rows: a transaction that terminates an agent may hold them.
        batch, [_, rows] = await access.load_with_roles(
            tx, commands, Q.agents_get(batch=refs), before=[Q.agent_pulses_lock(batch=refs)]
        )
        agents = decode_agents(rows)
        updated: dict[Ref, Agent] = {}
        history: list[tuple[RecordHeartbeat, Agent]] = []
        outcomes: list[HeartbeatResult | Problem | Busy] = []
        for command in commands:
            agent = _find_agent(command, agents, batch)
            if not isinstance(agent, Agent):
                outcomes.append(agent)
                continue
            if states.belongs_in_history(agent, command, tx.now):
                history.append((command, agent))
            agents[command.ref] = updated[command.ref] = agent = states.apply_heartbeat(agent, command, tx.now)
            outcomes.append(HeartbeatResult(agent, states.needs_status_refresh(agent, tx.now)))
        persist.write_pulses(tx, [updated[ref] for ref in sorted(updated)])
        if history:
            _insert_history(tx, history)
        if self.listeners and updated:
            tx.on_commit(lambda: self._notify([*updated.values()]))
        return outcomes

    def _notify(self, agents: Sequence[Agent]) -> None:
        for listener in self.listeners:
            listener(agents)


def _find_agent(
    command: RecordHeartbeat, agents: dict[Ref, Agent], batch: access.BatchWithRoles
) -> Agent | Problem | Busy:
    if problem := batch.permission_problem(command, "agents.beat"):
        return problem
    if acting_problem := errors.acting_agent_problem(command.caller, batch.role(command), command.agent_id):
        return acting_problem
    agent = agents.get(command.ref)
    if agent is None:
        return errors.agent_not_found(command.agent_id)
    return errors.agent_terminated(command.agent_id) if agent.status is State.TERMINATED else agent


def _insert_history(tx: Transaction, heartbeats: Sequence[tuple[RecordHeartbeat, Agent]]) -> None:
    batch = [
        (
            new_id(),
            *command.ref,
            command.status,
            command.current_task_id,
            command.progress_percent,
            command.memory_mb,
            command.cpu_percent,
            tx.now,
            tx.now + states.next_heartbeat_seconds(agent) * SECOND,
            command.metadata,
        )
        for command, agent in heartbeats
    ]
    tx.write(Q.agent_heartbeats_insert(batch=batch))
