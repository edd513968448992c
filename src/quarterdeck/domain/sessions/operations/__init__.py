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
    bearers_of,
    by_ref,
    get,
    guarded,
    held_up,
    require_bearer,
)
from quarterdeck.domain.sessions.operations.explain import Explainer
from quarterdeck.domain.sessions.operations.reads import expired, orphaned, page, receipt, show, subtree, unfinished
from quarterdeck.domain.sessions.operations.repair_counts import is_miscounted, recount
from quarterdeck.domain.sessions.operations.retention import forget
from quarterdeck.domain.sessions.operations.slot_counts import SlotCounts
from quarterdeck.domain.sessions.operations.spawn import Spawner
from quarterdeck.domain.sessions.operations.suspend import hold
from quarterdeck.domain.sessions.operations.terminate import Ender, Finisher

__all__ = [
    "Ender",
    "Explainer",
    "Finisher",
    "SlotCounts",
    "Spawner",
    "bearers_of",
    "by_ref",
    "expired",
    "forget",
    "get",
    "guarded",
    "held_up",
    "hold",
    "is_miscounted",
    "orphaned",
    "page",
    "receipt",
    "recount",
    "require_bearer",
    "show",
    "subtree",
    "unfinished",
]
