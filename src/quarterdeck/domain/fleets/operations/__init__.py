"""What can be done with fleets, each verb over a batch: load under locks, decide by `rules`, write.

| module   | verbs                                                                                   |
|----------|-----------------------------------------------------------------------------------------|
| crew     | create and delete fleets; register, place and deregister members; configure, claim, beat   |
| messages | send, broadcast, acknowledge, cancel, and the receipt of a notice                          |
| looking  | fleets, members, inboxes, the monitor, as they stand                                       |
| timeline | what was said in a fleet, broadcasts as one entry                                           |
| awaiting | polls that wait                                                                           |
| standing | one member, its fleet and its pane, for whoever is about to reach into that                  |

Locks are taken in this order: the zone, the agents' pulses, the log.
"""
