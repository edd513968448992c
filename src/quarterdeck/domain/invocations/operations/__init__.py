"""The operations of invocations: functions that run in a transaction.

| module           | holds                                                                                        |
|------------------|----------------------------------------------------------------------------------------------|
| batch            | enqueue, claim, start, complete, heartbeat, cancel, release, check overdue: one lane         |
| long_poll        | the waiting claims of this process, and the reads for them                                   |
| on_session_ended | listeners for ended, suspended and resumed sessions and for ended services; their backlogs   |
| reads            | show, list and explain; the searches for sweeps and push delivery; the retention delete      |
| persist          | writes the rows and events that were decided                                                 |
"""

from quarterdeck.domain.invocations.operations.on_session_ended import (
    on_service_ended as on_service_ended,
    on_session_changed as on_session_changed,
)
from quarterdeck.domain.invocations.operations.reads import find_unreferenced_services as find_unreferenced_services
