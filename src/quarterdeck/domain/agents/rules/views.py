"""Views of agents and their health."""

from __future__ import annotations

from quarterdeck.core.clock import SECOND, iso
from quarterdeck.core.views import view_of
from quarterdeck.domain.agents.model import (
    Agent,
    AgentHistory,
    AgentView,
    HealthView,
    Heartbeat,
    HeartbeatRowView,
    State,
)
from quarterdeck.domain.agents.rules import states

view = view_of(Agent, AgentView, status=states.displayed_status, held_tasks="held")
_heartbeat_view = view_of(Heartbeat, HeartbeatRowView, metadata="metadata_json")


def health_view(history: AgentHistory) -> HealthView:
    agent = history.agent
    return HealthView(
        agent_id=agent.id,
        status=states.displayed_status(agent),
        status_reason=agent.status_reason,
        last_seen_at=iso(agent.last_seen_at),
        next_expected_at=iso(agent.last_seen_at + states.next_heartbeat_seconds(agent) * SECOND),
        age_seconds=max(0, history.at - agent.last_seen_at) / SECOND,
        # Computed at each read, because the stored status may be out of date.
        is_stale=agent.status is not State.TERMINATED
        and (agent.status is State.ERROR or states.is_stale(agent, history.at)),
        held_tasks=agent.held,
        current_task_id=agent.current_task_id,
        progress_percent=agent.progress_percent,
        current_step=agent.current_step,
        memory_mb=agent.memory_mb,
        cpu_percent=agent.cpu_percent,
        heartbeats=[_heartbeat_view(row) for row in history.heartbeats],
    )
