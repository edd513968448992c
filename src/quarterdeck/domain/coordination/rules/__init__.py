"""What coordination decides, without looking at anything: what is seen comes in, what is to be asked of the lanes goes
out.

| module    | what                                                                              |
|-----------|-----------------------------------------------------------------------------------|
| matching  | which task goes to which agent                                                      |
| recovery  | what is to be done about what a turn has seen                                       |
| launching | what a launcher is told, and what of a process's last words is kept                 |
| reading   | how events of tasks and agents read as lines of the coordinator's log                |
"""
