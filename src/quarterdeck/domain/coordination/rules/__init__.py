"""The pure functions of coordination. They do no I/O and read no clock.

| module         | what it decides                                                                  |
|----------------|----------------------------------------------------------------------------------|
| matching       | which task is assigned to which agent                                            |
| recovery       | the commands for the due work that a cycle has found                             |
| launch_payload | what a launcher sends, and which part of a process's output is kept              |
| log_view       | how events of tasks and agents are rendered in the coordinator's log             |
"""
