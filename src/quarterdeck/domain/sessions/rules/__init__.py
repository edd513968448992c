"""The pure part of sessions, one file per question.

| module     | what it answers                                                                    |
|------------|------------------------------------------------------------------------------------|
| lives      | which states there are, how a session reads at a moment, whose token is still good    |
| admission  | who is admitted: the quota table                                                      |
| ending     | what ends together, in which order, and what is too much for one transaction           |
| suspension | who sleeps, and who wakes when a flag is cleared                                      |
| explaining | why a session is as it is, and what a spawn would be refused by                       |
"""

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
    SESSION,
    TTL_EXPIRED,
    bearer_problem,
    effective_session,
    is_live,
    ownership_required,
    session_not_found,
    session_suspended,
    suspended_caller_problem,
    view,
)

__all__ = [
    "BOUNDS",
    "MAX_CONCURRENT",
    "SESSION",
    "SPAWN",
    "TTL_EXPIRED",
    "Count",
    "CountKey",
    "ExpiredGroup",
    "SpawnBatchInput",
    "admit",
    "bearer_problem",
    "count_sessions",
    "effective_session",
    "is_live",
    "limit_exceeded",
    "obsolete_count_keys",
    "ownership_required",
    "session_not_found",
    "session_suspended",
    "subtract_expired",
    "suspended_caller_problem",
    "view",
]
