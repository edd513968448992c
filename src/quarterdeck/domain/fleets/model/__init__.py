"""The data types of fleets.

| module   | holds                                                                         |
|----------|-------------------------------------------------------------------------------|
| rows     | database rows: fleets, members, messages, placements, the monitor; settings   |
| commands | commands of the lanes `fleet` and `message`, and their results                |
| bodies   | request bodies and query parameters, with their limits                        |
| filters  | parameters of read operations                                                 |
| views    | response bodies                                                               |
"""
