"""Writes the rows and events of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from quarterdeck.core.ids import Ref
from quarterdeck.domain.agents.model import Agent
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules.states import AgentChange
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.sql import chunks


async def update_agents(tx: Transaction, changes: Mapping[Ref, tuple[Agent, Agent]]) -> None:
    """Write status changes. `changes` maps each agent to (before, after). Pulses are not written."""
    batch = [
        (
            after.zone_id,
            after.id,
            before.status,
            after.status,
            after.status_reason,
            after.draining,
            after.look_at,
            after.terminated_at,
            after.updated_at,
        )
        for _, (before, after) in sorted(changes.items())
        if before != after
    ]
    for piece in chunks(batch):
        [rows] = await tx.read(Q.agents_update_status(batch=piece))
        if len(rows) != len(piece):
            raise RuntimeError("agents were changed by another transaction despite the zone's lock")


def write_pulses(tx: Transaction, agents: Iterable[Agent]) -> None:
    """Write the pulses of agents. The transaction must have locked these rows."""
    batch = [
        (
            agent.zone_id,
            agent.id,
            agent.pulse_status,
            agent.current_task_id,
            agent.progress_percent,
            agent.current_step,
            agent.memory_mb,
            agent.cpu_percent,
            agent.last_seen_at,
            agent.kept_at,
        )
        for agent in agents
    ]
    if batch:
        tx.write(Q.agent_pulses_update(batch=batch))


def change_event(change: AgentChange, actor: str, trace: str | None) -> NewEvent:
    """Build the event of a change. The change must have an event type."""
    before, after = change.before, change.after
    if change.event_type is None:
        raise ValueError("the change has no event type")
    data = msgspec.json.encode(dict(change.data)).decode()
    return NewEvent(change.event_type, after.zone_id, after.id, actor, before.status, after.status, data, trace)


def emit_change(tx: Transaction, change: AgentChange, actor: str, trace: str | None = None) -> None:
    if change.event_type is not None:
        tx.emit(change_event(change, actor, trace))
