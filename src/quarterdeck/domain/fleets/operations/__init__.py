"""The operations of fleets. A write operation runs one batch: load under locks, decide by `rules`, persist.

| module          | operations                                                                             |
|-----------------|----------------------------------------------------------------------------------------|
| members         | lane `fleet`: create and delete fleets, register, place and deregister members, the    |
|                 | monitor's claim, heartbeat, release and configuration                                  |
| messages        | lane `message`: send, broadcast, acknowledge, cancel, record the receipt of a notice   |
| fleet_reads     | reads of fleets, members and the monitor                                               |
| message_reads   | reads of messages: one, an inbox, sent messages, all of a fleet                        |
| timeline        | reads of a fleet's timeline, where a broadcast is one entry                            |
| inbox_long_poll | long polls of an inbox                                                                 |
| placements      | reads of placements, for access to panes                                               |

Locks are taken in this order: the zone, the agents' heartbeat rows, the event log.
"""
