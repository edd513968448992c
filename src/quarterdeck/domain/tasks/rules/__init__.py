"""The pure part.

| module    | what it decides                                                                        |
|-----------|----------------------------------------------------------------------------------------|
| lives     | the states, and each step from one to the next                                          |
| board     | one batch, in order of arrival                                                          |
| waiting   | what the end of a task means for those that depend on it                                |
| queues    | what may begin, by class, in the order of turns                                         |
| turns     | the order in which tasks are handed out, by strategy                                    |
| graph     | whether dependencies close a cycle, and which                                           |
| arranging | the tasks of one request, each after those of the same request that it depends on        |
| spending  | budgets: whose costs they count, and when they are spent                                 |
| telling   | the log of a task: how transitions read, who may say something, and in what order         |
| explaining | why a task is as it is, and what would move it                                           |
| showing   | how a task is shown                                                                     |
| refusals  | what can be refused, and how it is said                                                 |
"""
