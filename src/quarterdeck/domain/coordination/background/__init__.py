"""The coordinator and what it uses. All of it runs between requests.

| module            | holds                                                                    |
|-------------------|--------------------------------------------------------------------------|
| coordinator       | the leader loop: one cycle after another                                 |
| assignment        | one pass that assigns ready tasks to agents, and launches them           |
| dependency_cycles | finds tasks that wait for each other                                     |
| health_checks     | whether the coordinator is healthy, for `/health` and the status route   |
| redis_signals     | names the coordinator in Redis, and wakes it when a message arrives       |
| launchers         | start an agent's process or call its URL                                 |
| metrics           | what the coordinator counts                                              |
"""
