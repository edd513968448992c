"""Random load and faults for the work plane: agents as separate processes, faults of agents and servers, and the
histories that the agents record.

| module         | holds                                                                                      |
|----------------|--------------------------------------------------------------------------------------------|
| task_plan      | the tasks of a run and their dependencies                                                  |
| agent_main     | one agent as a program: `python -m tests.support.work_plane_attack.agent_main`             |
| sdk_agent      | an agent that uses the SDK's worker                                                        |
| http_agent     | an agent that uses plain HTTP, and misbehaves                                              |
| task_execution | how both execute a task: step by step, from the last checkpoint                            |
| history_writer | writes an agent's calls in the format of `docs/checking.md`; survives the agent's death    |
| agent_pool     | the agents' processes: killed, frozen, resumed, replaced                                   |
| fault_injector | faults of agents, servers and the database                                                 |
| run            | one run, from the first task to the end of the last                                        |
| stale_accepts  | finds reports that were accepted after another agent held the task, from the histories     |
| corruptions    | changes a finished run so that the checker must find a violation                           |

Every decision comes from a generator that is seeded with the run's seed and the name of the agent or component. The
effects depend on the responses, which a seed does not determine.
"""
