"""The pure rules of agents.

| module       | decides                                                                   |
|--------------|---------------------------------------------------------------------------|
| states       | the status of an agent from its heartbeats, and how many tasks it may get |
| registration | how a registration changes an agent, and who may register or terminate it |
| errors       | codes and texts of errors, and whether an agent token is valid            |
| views        | how agents and their health appear in responses                           |
"""

from quarterdeck.domain.agents.rules.errors import (
    acting_agent_problem,
    agent_not_found,
    agent_terminated,
    unknown_launcher,
)
from quarterdeck.domain.agents.rules.registration import (
    RegistrationContext,
    loses_held_tasks,
    register,
    termination_problem,
    update_from_body,
)
from quarterdeck.domain.agents.rules.states import (
    AGENT_STATES,
    AgentChange,
    apply_heartbeat,
    awaits_first_contact,
    belongs_in_history,
    claim_problem,
    displayed_status,
    evaluate_liveness,
    free_slots,
    is_stale,
    ms_until_contact,
    needs_status_refresh,
    next_heartbeat_seconds,
    terminate,
    was_just_seen,
)
from quarterdeck.domain.agents.rules.views import health_view, view

__all__ = [
    "AGENT_STATES",
    "AgentChange",
    "RegistrationContext",
    "acting_agent_problem",
    "agent_not_found",
    "agent_terminated",
    "apply_heartbeat",
    "awaits_first_contact",
    "belongs_in_history",
    "claim_problem",
    "displayed_status",
    "evaluate_liveness",
    "free_slots",
    "health_view",
    "is_stale",
    "loses_held_tasks",
    "ms_until_contact",
    "needs_status_refresh",
    "next_heartbeat_seconds",
    "register",
    "terminate",
    "termination_problem",
    "unknown_launcher",
    "update_from_body",
    "view",
    "was_just_seen",
]
