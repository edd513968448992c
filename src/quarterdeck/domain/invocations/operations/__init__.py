"""What can be done with invocations.

| module   | what                                                                                          |
|----------|-----------------------------------------------------------------------------------------------|
| exchange | call, claim, start, complete, heartbeat, cancel, release and what sweeps find: one lane, one batch |
| waiting  | who waits for work in this process, and what is looked for on their behalf                       |
| settling | what the end or the suspension of a session, or the end of a service, means for its invocations  |
| looking  | show, list, explain, and what sweeps look for                                                   |
"""

from quarterdeck.domain.invocations.operations.batch import Exchange
from quarterdeck.domain.invocations.operations.long_poll import Look, Waiters
from quarterdeck.domain.invocations.operations.on_session_ended import (
    go_with_service,
    go_with_session,
    note_backlogs,
    oldest_backlogs,
    settle,
)
from quarterdeck.domain.invocations.operations.reads import (
    BEGINNING,
    explain,
    forget,
    orphaned,
    overdue,
    page,
    services_left_alone,
    show,
    to_push,
)

__all__ = [
    "BEGINNING",
    "Exchange",
    "Look",
    "Waiters",
    "explain",
    "forget",
    "go_with_service",
    "go_with_session",
    "note_backlogs",
    "oldest_backlogs",
    "orphaned",
    "overdue",
    "page",
    "services_left_alone",
    "settle",
    "show",
    "to_push",
]
