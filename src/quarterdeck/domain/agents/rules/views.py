"""Views of agents and their health."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import SECOND, iso, iso_or_none
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


def view(agent: Agent) -> AgentView:
    return AgentView(
        id=agent.id,
        zone_id=agent.zone_id,
        name=agent.name,
        model=agent.model,
        description=agent.description,
        capabilities=msgspec.Raw(agent.capabilities.encode()),
        max_concurrent_tasks=agent.max_concurrent_tasks,
        heartbeat_interval_seconds=agent.heartbeat_interval_seconds,
        stale_threshold_seconds=agent.stale_threshold_seconds,
        coordinator_enabled=bool(agent.coordinator_enabled),
        launcher=agent.launcher,
        labels=msgspec.Raw(agent.labels.encode()),
        pool=agent.pool,
        status=states.displayed_status(agent),
        status_reason=agent.status_reason,
        draining=bool(agent.draining),
        held_tasks=agent.held,
        current_task_id=agent.current_task_id,
        last_seen_at=iso(agent.last_seen_at),
        terminated_at=iso_or_none(agent.terminated_at),
        created_by=agent.created_by,
        created_at=iso(agent.created_at),
        updated_at=iso(agent.updated_at),
    )


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


def _heartbeat_view(row: Heartbeat) -> HeartbeatRowView:
    return HeartbeatRowView(
        status=row.status,
        current_task_id=row.current_task_id,
        progress_percent=row.progress_percent,
        memory_mb=row.memory_mb,
        cpu_percent=row.cpu_percent,
        last_seen_at=iso(row.last_seen_at),
        next_expected_at=iso(row.next_expected_at),
        metadata=msgspec.Raw(row.metadata_json.encode()),
    )
