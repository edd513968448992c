"""Part of the composition root: builds each component with its lanes, sweeps, metrics and settings.

| module       | builds                                                  |
|--------------|---------------------------------------------------------|
| sessions     | zones, sessions, API keys, services and delegations     |
| invocations  | invocations and their push delivery                     |
| agents       | agents and role assignments                             |
| tasks        | tasks, and their logs, costs and budgets                |
| coordination | the coordinator and the launchers                       |
| webhooks     | webhooks, their delivery and their sink                 |
| fleets       | fleets, members, messages, and access to tmux panes     |
| redis        | the Redis sinks and mirrors                             |
| secrets      | the encryption keys, and the routes that rotate them    |

All of them take the shared `quarterdeck.runtime`. `quarterdeck.app` calls them and lists the event listeners.
"""
