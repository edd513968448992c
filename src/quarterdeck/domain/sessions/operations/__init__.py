"""What can be done with sessions, each verb over a batch: load under locks, decide by `rules`, write.

| module   | verbs                                                                                      |
|----------|--------------------------------------------------------------------------------------------|
| bearers  | whether the sessions that callers speak for still live; every verb asks it in its transaction |
| spawning | spawn                                                                                       |
| ending   | terminate, stop a zone, settle what was stamped                                             |
| finishing | from the stamp to the last chunk, for whoever asked, joined or sweeps                       |
| forgetting | retention                                                                                   |
| recounting | counts that a hand has made wrong, set right                                              |
| holding  | suspend, resume                                                                             |
| looking  | show, list, subtree, receipts, and what sweeps look for                                     |
| explaining | why                                                                                       |
| slots    | how many places of children are taken, for others to read                                   |
"""

from quarterdeck.domain.sessions.operations.caller_session import (
    bearer_refs,
    blocked,
    decode_sessions,
    get_statement,
    require_bearer,
    with_bearer_check,
)
from quarterdeck.domain.sessions.operations.explain import Explainer
from quarterdeck.domain.sessions.operations.reads import (
    build_receipt,
    find_expired,
    find_orphaned,
    find_unfinished_cascades,
    list_sessions,
    list_subtree,
    show_sessions,
)
from quarterdeck.domain.sessions.operations.repair_counts import has_mismatched_counts, repair_zone_counts
from quarterdeck.domain.sessions.operations.retention import delete_expired
from quarterdeck.domain.sessions.operations.slot_counts import SlotCounts
from quarterdeck.domain.sessions.operations.spawn import Spawner
from quarterdeck.domain.sessions.operations.suspend import suspend_or_resume
from quarterdeck.domain.sessions.operations.terminate import CascadeRunner, Terminator

__all__ = [
    "CascadeRunner",
    "Explainer",
    "SlotCounts",
    "Spawner",
    "Terminator",
    "bearer_refs",
    "blocked",
    "build_receipt",
    "decode_sessions",
    "delete_expired",
    "find_expired",
    "find_orphaned",
    "find_unfinished_cascades",
    "get_statement",
    "has_mismatched_counts",
    "list_sessions",
    "list_subtree",
    "repair_zone_counts",
    "require_bearer",
    "show_sessions",
    "suspend_or_resume",
    "with_bearer_check",
]
