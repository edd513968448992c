"""Operations of sessions, each over a batch: load under locks, decide by `rules`, write.

| module         | operations                                                                             |
|----------------|----------------------------------------------------------------------------------------|
| spawn          | spawn                                                                                  |
| terminate      | terminate, stop a zone, run a cascade to its end                                       |
| suspend        | suspend and resume                                                                     |
| reads          | load, show, list, subtree, receipt; the searches for sweeps and the retention delete   |
| explain        | explain a session or a spawn                                                           |
| counts         | repair wrong counts; count child sessions for the Redis mirror                         |
"""

from quarterdeck.domain.sessions.operations.counts import SlotCounts as SlotCounts
from quarterdeck.domain.sessions.operations.reads import (
    decode_sessions as decode_sessions,
    load_statement as load_statement,
    show_sessions as show_sessions,
)
from quarterdeck.domain.sessions.operations.terminate import Terminator as Terminator
