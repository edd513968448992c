"""Operations of task logs.

| module    | what it does                                                     |
|-----------|------------------------------------------------------------------|
| writer    | adds lines                                                       |
| reads     | reads the transitions and the lines of a task as one log         |
| long_poll | waits for new entries                                            |
"""
