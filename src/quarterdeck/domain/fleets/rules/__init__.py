"""The decisions about fleets, without I/O and without a clock.

| module      | decides or holds                                                                       |
|-------------|----------------------------------------------------------------------------------------|
| members     | commands of the lane `fleet`: fleets, members, placements, the monitor                 |
| messages    | commands of the lane `message`: who may send to whom, and how a message ends           |
| monitor     | which process monitors a fleet, which members are due for a ping                       |
| agent_cards | the card of a member, which marks the administrator, and its id in the agent registry  |
| idempotency | the idempotency keys of one batch                                                      |
| views       | builds response bodies from rows; deregistered members are still shown by name         |
| errors      | the refusals and their texts                                                           |
"""
