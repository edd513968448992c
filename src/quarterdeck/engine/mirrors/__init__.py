"""Copies of database state in Redis, for readers outside Quarterdeck. Nothing reads them to decide anything.

| module     | what it keeps up to date                                                            |
|------------|-------------------------------------------------------------------------------------|
| keys       | the keys of tasks and agents, written from the event log under a leader lease         |
| slots      | the slot counters of each zone: used and maximum                                      |
| heartbeats | the time of each agent's last heartbeat                                               |

A mirror that cannot reach Redis retries and then writes the current state, so it may lag but not diverge for good.
Requests never wait for a mirror.
"""
