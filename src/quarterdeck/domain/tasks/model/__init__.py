"""Types for tasks: rows, commands, requests and responses.

| module        | contents                                                            |
|---------------|---------------------------------------------------------------------|
| rows          | stored tasks, settings, results of commands                         |
| commands      | commands of the task lane, from callers and from the server         |
| bodies        | request bodies and queries, with their limits                       |
| views         | responses                                                           |
| log_lines     | new lines of task logs                                              |
| explain_types | explanations of a task's state, and dependency trees                |
"""
