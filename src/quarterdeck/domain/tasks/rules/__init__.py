"""The pure part of tasks: no I/O, no clock, no randomness.

| module           | contents                                                                           |
|------------------|------------------------------------------------------------------------------------|
| states           | the states, and each transition as a function                                      |
| decider          | the commands of one batch, in order of arrival                                     |
| decisions        | what each command does to a batch                                                  |
| batch            | the parts of a batch: what was loaded, and what will be written                    |
| batch_input      | the loaded input of a batch                                                        |
| batch_agents     | free slots, and which agents made contact                                          |
| batch_content    | contents and tags                                                                  |
| dependencies     | which dependencies are met, and which tasks wait for which                         |
| dependency_graph | cycles, and the order in which the tasks of one request are created                |
| ready_queues     | ready tasks by class, lowest rank first                                            |
| ranking          | the rank of a task under each strategy                                             |
| idempotency      | the scope of idempotency keys                                                      |
| explain          | why a task is in its state, and what would change it                               |
| views            | responses                                                                          |
| errors           | problems that commands return                                                      |
"""
