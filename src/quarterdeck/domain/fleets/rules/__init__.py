"""The decisions about fleets, without I/O or a clock.

| module      | decides or holds                                                                       |
|-------------|----------------------------------------------------------------------------------------|
| members     | commands of the `fleet` lane: fleets, members, placements, the monitor                 |
| messages    | commands of the `message` lane: who may send to whom, acknowledge and cancel           |
| monitor     | which process monitors a fleet, and which members are due for a ping                   |
| agent_cards | cards of members, which mark the administrator, and their ids in the agent registry    |
| views       | builds response bodies from rows; deregistered members are still shown by name         |
| errors      | constructors of errors, with their texts                                               |
"""
