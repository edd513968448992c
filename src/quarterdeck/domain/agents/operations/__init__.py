"""Operations of agents.

An operation of a lane takes a batch of commands, loads their rows, decides with `rules` and writes the result.

| module         | holds                                                                   |
|----------------|-------------------------------------------------------------------------|
| load           | load a batch; the statement and decoder of agents for higher components |
| register       | register agents                                                         |
| heartbeat      | record heartbeats, without the zone's lock                              |
| liveness       | update the status of agents, terminate them                             |
| tokens         | issue tokens                                                            |
| task_slots     | count held tasks and revive agents, for `domain.tasks`                  |
| launch_queries | find agents with launchers, for the coordinator                         |
| retention      | delete agents that were terminated long ago                             |
| reads          | show and list agents, count them, show their health                     |
| persist        | write rows and events                                                   |
"""

from quarterdeck.domain.agents.operations.heartbeat import HeartbeatRecorder
from quarterdeck.domain.agents.operations.launch_queries import list_launch_zones, list_launchable
from quarterdeck.domain.agents.operations.liveness import (
    count_stale,
    list_due_liveness_checks,
    ms_until_liveness_check,
    refresh_status,
    terminate_agents,
)
from quarterdeck.domain.agents.operations.load import decode_agents, load_ms_until_contact, load_statement
from quarterdeck.domain.agents.operations.reads import (
    count_by_status,
    list_agent_ids,
    list_agents,
    load_history,
    show_agents,
)
from quarterdeck.domain.agents.operations.register import Registrar
from quarterdeck.domain.agents.operations.retention import delete_past_retention
from quarterdeck.domain.agents.operations.task_slots import adjust_held, revive
from quarterdeck.domain.agents.operations.tokens import issue_tokens
from quarterdeck.domain.agents.rules import awaits_first_contact, claim_problem, free_slots, was_just_seen

__all__ = [
    "HeartbeatRecorder",
    "Registrar",
    "adjust_held",
    "awaits_first_contact",
    "claim_problem",
    "count_by_status",
    "count_stale",
    "decode_agents",
    "delete_past_retention",
    "free_slots",
    "issue_tokens",
    "list_agent_ids",
    "list_agents",
    "list_due_liveness_checks",
    "list_launch_zones",
    "list_launchable",
    "load_history",
    "load_ms_until_contact",
    "load_statement",
    "ms_until_liveness_check",
    "refresh_status",
    "revive",
    "show_agents",
    "terminate_agents",
    "was_just_seen",
]
