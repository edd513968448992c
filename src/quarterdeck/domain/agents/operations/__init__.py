"""Operations of agents.

An operation of a lane takes a batch of commands, loads their rows, decides with `rules` and writes the result.

| module         | holds                                                                   |
|----------------|-------------------------------------------------------------------------|
| load           | load a batch; the statement and decoder of agents for higher components |
| register       | register agents                                                         |
| heartbeat      | record heartbeats, without the zone's lock                              |
| liveness       | update the status of agents, terminate and delete them                  |
| tokens         | issue tokens                                                            |
| task_slots     | count held tasks and revive agents, for `domain.tasks`                  |
| reads          | show, list and count agents, show their health, find those to launch    |
| persist        | write rows and events                                                   |
"""

from quarterdeck.domain.agents.operations.heartbeat import HeartbeatRecorder as HeartbeatRecorder
from quarterdeck.domain.agents.operations.liveness import (
    count_stale as count_stale,
    list_due_liveness_checks as list_due_liveness_checks,
    ms_until_liveness_check as ms_until_liveness_check,
    terminate_agents as terminate_agents,
)
from quarterdeck.domain.agents.operations.load import (
    decode_agents as decode_agents,
    load_ms_until_contact as load_ms_until_contact,
    load_statement as load_statement,
)
from quarterdeck.domain.agents.operations.reads import (
    count_by_status as count_by_status,
    list_agent_ids as list_agent_ids,
    list_agents as list_agents,
    list_launch_zones as list_launch_zones,
    list_launchable as list_launchable,
)
from quarterdeck.domain.agents.operations.register import Registrar as Registrar
from quarterdeck.domain.agents.operations.task_slots import adjust_held as adjust_held, revive as revive
from quarterdeck.domain.agents.rules.states import (
    awaits_first_contact as awaits_first_contact,
    claim_problem as claim_problem,
    free_slots as free_slots,
    was_just_seen as was_just_seen,
)
