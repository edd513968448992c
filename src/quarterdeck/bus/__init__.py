"""What goes out to other systems, and nothing that this one depends on.

| module  | what it decides                                                                              |
|---------|----------------------------------------------------------------------------------------------|
| port    | what a sink and the keeper of slots need of the other side, and what it means to be away       |
| streams | which entries an event becomes, on which stream, with which fields, and how they are signed    |
| redis   | how entries get into Redis streams once, and slots into keys that never go back                |
| keys    | what is seen of tasks and agents, under which keys, and what is published of them               |
| redis_keys | how that gets into Redis, and what stands there is found                                    |

The database decides. Nothing here is asked before something is admitted, answered or ended, so with the other side
away, wiped or lying every call is answered as before; what is late is told later, from the log.

How it fails. The other side away (no connection, no answer in time, or an answer that speaks of its own state: loading,
read-only, out of memory) is `Away`: whoever delivers stops where it is and tries again. An entry that is refused for
what it is, is handed back as such: it waits apart, and the rest goes on.
"""
