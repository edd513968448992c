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

from quarterdeck.domain.agents.operations.authorization import still_speak
from quarterdeck.domain.agents.operations.heartbeat import Beater
from quarterdeck.domain.agents.operations.launch_queries import launch_zones, launchable_in
from quarterdeck.domain.agents.operations.liveness import look, next_look, stale_count, terminate, to_look_at
from quarterdeck.domain.agents.operations.load import by_ref, get, waiting
from quarterdeck.domain.agents.operations.reads import counted, names, page, show, watch
from quarterdeck.domain.agents.operations.register import Registrar
from quarterdeck.domain.agents.operations.retention import forget
from quarterdeck.domain.agents.operations.task_slots import hold, revive
from quarterdeck.domain.agents.operations.tokens import issue
from quarterdeck.domain.agents.rules import claim_problem, free_slots, is_unheard, was_just_heard

__all__ = [
    "Beater",
    "Registrar",
    "by_ref",
    "claim_problem",
    "counted",
    "forget",
    "free_slots",
    "get",
    "hold",
    "is_unheard",
    "issue",
    "launch_zones",
    "launchable_in",
    "look",
    "names",
    "next_look",
    "page",
    "revive",
    "show",
    "stale_count",
    "still_speak",
    "terminate",
    "to_look_at",
    "waiting",
    "was_just_heard",
    "watch",
]
