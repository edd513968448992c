"""What happened to tasks and agents, and what the coordinator was told, as lines: a view over the log of events."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.domain.coordination.model import CoordinatorLogView
from quarterdeck.domain.tasks.model.log_types import Level
from quarterdeck.domain.tasks.rules import log_rendering
from quarterdeck.engine.event_log import Event

EVENT_LEVELS: dict[str, Level] = {
    **{name: level for name, (level, _) in log_rendering.EVENT_RENDERING.items()},
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
"""How each reads, before its data is looked at: every type of the log about tasks, agents and the coordinator."""
DEFAULT_LEVELS = (Level.WARN, Level.ERROR, Level.CRITICAL)
MESSAGES = {
    "agent.stale": "It was not heard of for too long.",
    "agent.degraded": "It says that it fares badly.",
    "agent.revived": "It was heard of again.",
    "agent.restarted": "Another process works as it: what the one before held is lost.",
    "agent.recovered": "It says that it fares well again.",
    "agent.registered": "It was registered.",
    "agent.changed": "What is said of it was changed.",
    "agent.draining": "It is to end with its last task.",
    "agent.terminated": "It was terminated.",
    "agent.token_issued": "A token was made that speaks for it.",
    "coordinator.strategy": "Tasks are handed out in another order.",
}


class _EventData(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str | None = None


def event_types(level: Level | None) -> tuple[str, ...]:
    """The events to look through; without a level those that somebody should look at."""
    levels = DEFAULT_LEVELS if level is None else (Level.ERROR,) if level is Level.CRITICAL else (level,)
    return tuple(name for name, event_level in EVENT_LEVELS.items() if event_level in levels)


def to_view(event: Event) -> CoordinatorLogView:
    component, _, _ = event.type.partition(".")
    if component == "task":
        fields = (event.type, event.actor, event.from_state, event.to_state, event.data, event.at)
        entry = log_rendering.entry_from_transition(log_rendering.Transition(event.pos, event.id, *fields))
        level, message, agent_id = entry.level, entry.message or "", entry.agent_id
    else:
        level, message = EVENT_LEVELS.get(event.type, Level.INFO), MESSAGES.get(event.type, f"{event.type}.")
        agent_id = event.subject if component == "agent" else None
    return CoordinatorLogView(
        id=event.id,
        zone_id=event.zone_id,
        level=level,
        event=event.type,
        task_id=event.subject if component == "task" else None,
        agent_id=agent_id,
        message=message,
        details=msgspec.Raw(event.data.encode()),
        previous_status=event.from_state,
        new_status=event.to_state,
        created_at=iso(event.at),
    )
