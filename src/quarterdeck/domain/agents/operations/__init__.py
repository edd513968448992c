"""What can be done with agents and members, each verb over a batch: load under locks, decide by `rules`, write.

| module      | verbs                                                                                     |
|-------------|-------------------------------------------------------------------------------------------|
| speaking    | whether callers may speak: their session, their agent, their role; every verb asks it       |
| members     | make, change and remove members                                                             |
| loading     | what the verbs read first; and the statement and decoder by which rooms above load agents   |
| registering | register                                                                                    |
| beating     | heartbeats, which take no zone's lock                                                       |
| watching    | look whether agents are still heard of, terminate them, give out their tokens               |
| holding     | what agents hold, counted for the room of tasks, and what their word about tasks means       |
| forgetting  | remove those that were terminated long ago                                                   |
| looking     | show, list, and how an agent fares                                                          |
| writing     | rows and events of what was decided                                                         |
"""

from quarterdeck.domain.agents.operations.authorization import check_agent_callers
from quarterdeck.domain.agents.operations.heartbeat import HeartbeatRecorder
from quarterdeck.domain.agents.operations.launch_queries import list_launch_zones, list_launchable
from quarterdeck.domain.agents.operations.liveness import (
    count_stale,
    list_liveness_due,
    next_liveness_due,
    refresh_status,
    terminate_agents,
)
from quarterdeck.domain.agents.operations.load import decode_agents, get_statement, load_contact_deadlines
from quarterdeck.domain.agents.operations.reads import (
    count_by_status,
    list_agent_ids,
    list_agents,
    load_history,
    show_agents,
)
from quarterdeck.domain.agents.operations.register import Registrar
from quarterdeck.domain.agents.operations.retention import delete_expired
from quarterdeck.domain.agents.operations.task_slots import adjust_held, revive
from quarterdeck.domain.agents.operations.tokens import issue_tokens
from quarterdeck.domain.agents.rules import awaits_first_contact, claim_problem, free_slots, was_just_seen

__all__ = [
    "HeartbeatRecorder",
    "Registrar",
    "adjust_held",
    "awaits_first_contact",
    "check_agent_callers",
    "claim_problem",
    "count_by_status",
    "count_stale",
    "decode_agents",
    "delete_expired",
    "free_slots",
    "get_statement",
    "issue_tokens",
    "list_agent_ids",
    "list_agents",
    "list_launch_zones",
    "list_launchable",
    "list_liveness_due",
    "load_contact_deadlines",
    "load_history",
    "next_liveness_due",
    "refresh_status",
    "revive",
    "show_agents",
    "terminate_agents",
    "was_just_seen",
]
