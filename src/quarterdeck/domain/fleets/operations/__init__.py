"""The operations of fleets. A write operation runs one batch: load under locks, decide with `rules`, persist.

| module          | operations                                                                             |
|-----------------|----------------------------------------------------------------------------------------|
| members         | lane `fleet`: create and delete fleets; register, place and deregister members; claim, |
|                 | release and configure the monitor, record its heartbeats                               |
| messages        | lane `message`: send, broadcast, acknowledge, cancel, record the receipt of a notice   |
| fleet_reads     | reads of fleets, members and the monitor                                               |
| message_reads   | reads of one message, an inbox, sent messages, or all messages of a fleet              |
| timeline        | reads of a fleet's timeline, where a broadcast is one entry                            |
| inbox_long_poll | long polls for an inbox                                                                |
| placements      | reads of placements, for access to panes                                               |
| pane_access     | the pane of one placement: finds it, types into it, makes its agent exit, kills it     |
| member_panes    | creates, reads, types into and closes the panes of members                             |

Locks are taken in this order: the zone, the agents' heartbeat rows, the event log.
"""
