"""Copies of database state in Redis, for readers outside Quarterdeck. No decision depends on them.

| module     | keeps up to date                                                                    |
|------------|-------------------------------------------------------------------------------------|
| keys       | the keys of tasks and agents, written from the event log under a leader lease       |
| slots      | the slot counters of each zone                                                      |
| heartbeats | the latest heartbeat of each agent                                                  |

A mirror that cannot reach Redis retries and then writes the current state, so it may lag but does not stay wrong.
Requests never wait for a mirror.
"""
