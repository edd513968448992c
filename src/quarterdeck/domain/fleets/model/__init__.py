"""What fleets are made of.

| module   | what it holds                                                                 |
|----------|-------------------------------------------------------------------------------|
| rows     | what is stored: fleets, members, messages, placements, the monitor's rows       |
| commands | what the lanes are asked for, and what comes of it                              |
| bodies   | what requests say, with their bounds                                            |
| filters  | what is looked for, where, and by whom                                          |
| views    | what answers show                                                               |
"""
