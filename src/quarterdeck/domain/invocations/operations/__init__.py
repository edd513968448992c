"""The operations of invocations: functions that run in a transaction.

| module           | holds                                                                                        |
|------------------|----------------------------------------------------------------------------------------------|
| batch            | enqueue, claim, start, complete, heartbeat, cancel, release, check overdue: one lane         |
| long_poll        | the waiting claims of this process, and the reads for them                                   |
| on_session_ended | listeners for ended, suspended and resumed sessions and for ended services; their backlogs   |
| reads            | show, list and explain; the searches for sweeps and push delivery; the retention delete      |
| persist          | writes the rows and events that were decided                                                 |
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
    explain,
    find_orphaned,
    find_overdue,
    find_services_to_push,
    find_unreferenced_services,
    list_invocations,
    retention_statements,
    show,
)

__all__ = [
    "SCAN_START",
    "BatchRunner",
    "ClaimPolls",
    "ReadyPollWaker",
    "add_backlogs",
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
    "retention_statements",
    "show",
]
