"""The pure rules of agents.

| module       | decides                                                                   |
|--------------|---------------------------------------------------------------------------|
| states       | the status of an agent from its heartbeats, and how many tasks it may get |
| registration | how a registration changes an agent, and who may register or terminate it |
| errors       | codes and texts of errors, and whether an agent token is valid            |
| views        | how agents and their health appear in responses                           |
"""

from quarterdeck.domain.agents.rules.states import (
    AGENT_STATES as AGENT_STATES,
    displayed_status as displayed_status,
    free_slots as free_slots,
    next_heartbeat_seconds as next_heartbeat_seconds,
)
