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

from quarterdeck.domain.sessions.operations.load import (
    decode_sessions as decode_sessions,
    load_statement as load_statement,
)
from quarterdeck.domain.sessions.operations.reads import show_sessions as show_sessions
from quarterdeck.domain.sessions.operations.slot_counts import SlotCounts as SlotCounts
from quarterdeck.domain.sessions.operations.terminate import Terminator as Terminator
