"""The work plane under load and under attack: agents as processes of their own, what is done to them and to the servers
meanwhile, and the histories that they keep of it.

| module    | what                                                                                             |
|-----------|--------------------------------------------------------------------------------------------------|
| plan      | the tasks of a run, and who depends on whom                                                        |
| agent     | one agent as a program: `python -m tests.support.work_plane_attack.agent_main`                                  |
| worker    | an agent that is written with the SDK's worker                                                     |
| plain     | an agent that is a loop over HTTP, and misbehaves                                                  |
| labour    | how either of them does a task: step by step, from where the last attempt had come to              |
| ledger    | what an agent writes down, in the form of `docs/checking.md`, whole up to the call it died in       |
| crew      | the processes of the agents: killed, frozen, woken, replaced                                       |
| disturber | what happens to agents, servers and the database                                                  |
| course    | one run, from the first task to the end of the last                                                |
| overlaps  | from the agents' own clock: whose words were still accepted after another held the task             |

Every decision is drawn from a generator that is seeded with the run's seed and the name of whoever decides. Where that
leads depends on what each is answered, which is left to the machine.
"""
