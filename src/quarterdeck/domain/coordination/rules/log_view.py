"""The coordinator's log: events of tasks, agents and the coordinator, rendered as lines."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.domain.coordination.model import CoordinatorLogView
from quarterdeck.domain.task_logs import rules as task_logs
from quarterdeck.domain.tasks.model.log_lines import Level
from quarterdeck.engine.event_log import Event

EVENT_LEVELS: dict[str, Level] = {
    **{name: level for name, (level, _) in task_logs.EVENT_RENDERING.items()},
    "agent.stale": Level.ERROR,
    "agent.degraded": Level.WARN,
    "agent.revived": Level.INFO,
    "agent.restarted": Level.WARN,
    "agent.recovered": Level.INFO,
    "agent.registered": Level.INFO,
    "agent.changed": Level.INFO,
    "agent.draining": Level.INFO,
    "agent.terminated": Level.INFO,
    "agent.token_issued": Level.INFO,
    "coordinator.strategy": Level.INFO,
}
"""The level of each event type about tasks, agents and the coordinator. The event's data may raise it."""
DEFAULT_LEVELS = (Level.WARN, Level.ERROR, Level.CRITICAL)
MESSAGES = {
    "agent.stale": "The agent is stale: it has not made contact for too long.",
    "agent.degraded": "The agent reports that it is degraded.",
    "agent.revived": "The agent made contact again.",
    "agent.restarted": "A new process is running as the agent. The attempts of the previous process are lost.",
    "agent.recovered": "The agent reports that it has recovered.",
    "agent.registered": "The agent was registered.",
    "agent.changed": "The agent's registration was changed.",
    "agent.draining": "The agent is draining: it is terminated after its last task.",
    "agent.terminated": "The agent was terminated.",
    "agent.token_issued": "A token was issued for the agent.",
    "coordinator.strategy": "The strategy of the workspace was changed.",
}


def event_types(level: Level | None) -> tuple[str, ...]:
    """The event types to read for a level. Without a level: warnings and errors."""
    levels = DEFAULT_LEVELS if level is None else (Level.ERROR,) if level is Level.CRITICAL else (level,)
    return tuple(name for name, event_level in EVENT_LEVELS.items() if event_level in levels)


def to_view(event: Event) -> CoordinatorLogView:
    subject_kind, _, _ = event.type.partition(".")
    if subject_kind == "task":
        fields = (event.type, event.actor, event.from_state, event.to_state, event.data, event.at)
        entry = task_logs.entry_from_transition(task_logs.Transition(event.pos, event.id, *fields))
        level, message, agent_id = entry.level, entry.message or "", entry.agent_id
    else:
        level, message = EVENT_LEVELS.get(event.type, Level.INFO), MESSAGES.get(event.type, f"{event.type}.")
        agent_id = event.subject if subject_kind == "agent" else None
    return CoordinatorLogView(
        id=event.id,
        zone_id=event.zone_id,
        level=level,
        event=event.type,
        task_id=event.subject if subject_kind == "task" else None,
        agent_id=agent_id,
        message=message,
        details=msgspec.Raw(event.data.encode()),
        previous_status=event.from_state,
        new_status=event.to_state,
        created_at=iso(event.at),
    )
