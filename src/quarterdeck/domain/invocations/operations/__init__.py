"""What can be done with invocations.

| module   | what                                                                                          |
|----------|-----------------------------------------------------------------------------------------------|
| exchange | call, claim, start, complete, heartbeat, cancel, release and what sweeps find: one lane, one batch |
| waiting  | who waits for work in this process, and who tells them                                          |
| settling | what the end or the suspension of a session, or the end of a service, means for its invocations  |
| looking  | show, list, explain, and what sweeps look for                                                   |
"""

from quarterdeck.domain.invocations.operations.exchange import Exchange
from quarterdeck.domain.invocations.operations.looking import (
    explain,
    forget,
    orphaned,
    overdue,
    page,
    show,
    to_push,
)
from quarterdeck.domain.invocations.operations.settling import go_with_service, go_with_session
from quarterdeck.domain.invocations.operations.waiting import Waiter, Waiters

__all__ = [
    "Exchange",
    "Waiter",
    "Waiters",
    "explain",
    "forget",
    "go_with_service",
    "go_with_session",
    "orphaned",
    "overdue",
    "page",
    "show",
    "to_push",
]
