"""The pure part of coordination: takes what a cycle has found, returns the commands to submit. No I/O, no clock.

| module         | what it decides                                                                  |
|----------------|----------------------------------------------------------------------------------|
| matching       | which task is assigned to which agent                                            |
| recovery       | the commands for what a cycle has found                                          |
| launch_payload | what a launcher sends, and how much output of a process is kept                  |
| log_view       | events of tasks and agents as lines of the coordinator's log                     |
"""
