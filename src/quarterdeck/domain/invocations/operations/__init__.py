"""What can be done with invocations.

| module   | what                                                                                          |
|----------|-----------------------------------------------------------------------------------------------|
| exchange | call, claim, start, complete, heartbeat, cancel, release and what sweeps find: one lane, one batch |
| waiting  | who waits for work in this process, and what is looked for on their behalf                       |
| settling | what the end or the suspension of a session, or the end of a service, means for its invocations  |
| looking  | show, list, explain, and what sweeps look for                                                   |
"""

from quarterdeck.domain.invocations.operations.batch import BatchRunner
from quarterdeck.domain.invocations.operations.long_poll import ClaimPolls, ReadyPollWaker
from quarterdeck.domain.invocations.operations.on_session_ended import (
    add_backlogs,
    load_oldest_backlogs,
    on_service_ended,
    on_session_changed,
    process_backlogs,
)
from quarterdeck.domain.invocations.operations.reads import (
    SCAN_START,
    delete_expired,
    explain,
    find_orphaned,
    find_overdue,
    find_services_to_push,
    find_unreferenced_services,
    list_invocations,
    show,
)

__all__ = [
    "SCAN_START",
    "BatchRunner",
    "ClaimPolls",
    "ReadyPollWaker",
    "add_backlogs",
    "delete_expired",
    "explain",
    "find_orphaned",
    "find_overdue",
    "find_services_to_push",
    "find_unreferenced_services",
    "list_invocations",
    "load_oldest_backlogs",
    "on_service_ended",
    "on_session_changed",
    "process_backlogs",
    "show",
]
