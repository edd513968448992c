"""The pure rules of sessions.

| module     | decides                                                                             |
|------------|-------------------------------------------------------------------------------------|
| states     | the states, and how a session reads at a given time                                 |
| admission  | which spawns are admitted: the quota table                                          |
| cascade    | what is terminated together, in which order, and when it takes several transactions |
| suspension | which sessions a suspend flag suspends, and which are resumed when it is cleared    |
| explain    | why a session is in its state, and why a spawn would be refused                     |
"""

from quarterdeck.domain.access.rules import is_live
from quarterdeck.domain.sessions.rules.admission import (
    BOUNDS,
    MAX_CONCURRENT,
    SPAWN,
    Count,
    CountKey,
    ExpiredGroup,
    SpawnBatchInput,
    admit,
    count_sessions,
    limit_exceeded,
    obsolete_count_keys,
    subtract_expired,
)
from quarterdeck.domain.sessions.rules.states import (
    SESSION_STATES,
    TTL_EXPIRED,
    effective_session,
    ownership_required,
    session_not_found,
    view,
)

__all__ = [
    "BOUNDS",
    "MAX_CONCURRENT",
    "SESSION_STATES",
    "SPAWN",
    "TTL_EXPIRED",
    "Count",
    "CountKey",
    "ExpiredGroup",
    "SpawnBatchInput",
    "admit",
    "count_sessions",
    "effective_session",
    "is_live",
    "limit_exceeded",
    "obsolete_count_keys",
    "ownership_required",
    "session_not_found",
    "subtract_expired",
    "view",
]
