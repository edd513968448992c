"""A part of the composition root: how each room is put together, of which lanes, sweeps and settings.

| module   | rooms                                                                     |
|----------|---------------------------------------------------------------------------|
| sessions | zones, sessions, keys, services, delegations, invocations                   |
| work     | members, agents, tasks                                                      |
| coordination | the coordinator, and whoever launches                                   |
| webhooks | webhooks, and their sink                                                    |
| fleets   | fleets, their members and messages; `panes`: who types into panes, makes and closes them |

What they have in common is `quarterdeck.runtime`; who listens to whom, and which rooms a server has, stands in
`quarterdeck.app`.
"""
