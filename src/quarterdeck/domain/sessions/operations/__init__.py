"""Operations of sessions, each over a batch: load under locks, decide by `rules`, write.

| module         | operations                                                                             |
|----------------|----------------------------------------------------------------------------------------|
| load           | load sessions by id, also for other components                                         |
| spawn          | spawn                                                                                  |
| terminate      | terminate, stop a zone, run a cascade to its end                                       |
| suspend        | suspend and resume                                                                     |
| reads          | show, list, subtree, receipt, and the searches for sweeps                              |
| explain        | explain a session or a spawn                                                           |
| repair_counts  | repair wrong counts                                                                    |
| retention      | delete old rows                                                                        |
| slot_counts    | counts of child sessions for the Redis mirror                                          |
"""

from quarterdeck.domain.sessions.operations.explain import Explainer
from quarterdeck.domain.sessions.operations.load import decode_sessions, load_statement
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
from quarterdeck.domain.sessions.operations.retention import retention_statements
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
    "build_receipt",
    "decode_sessions",
    "find_expired",
    "find_orphaned",
    "find_unfinished_cascades",
    "has_mismatched_counts",
    "list_sessions",
    "list_subtree",
    "load_statement",
    "repair_zone_counts",
    "retention_statements",
    "show_sessions",
    "suspend_or_resume",
]
