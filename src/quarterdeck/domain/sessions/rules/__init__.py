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
    Expired,
    Known,
    admit,
    emptied_by,
    exceeded,
    tally,
    without,
)
from quarterdeck.domain.sessions.rules.states import (
    EXPIRED,
    SESSION,
    as_read,
    asleep,
    bearer_problem,
    is_live,
    not_found,
    ownership_required,
    suspended,
    view,
)

__all__ = [
    "BOUNDS",
    "EXPIRED",
    "MAX_CONCURRENT",
    "SESSION",
    "SPAWN",
    "Count",
    "CountKey",
    "Expired",
    "Known",
    "admit",
    "as_read",
    "asleep",
    "bearer_problem",
    "emptied_by",
    "exceeded",
    "is_live",
    "not_found",
    "ownership_required",
    "suspended",
    "tally",
    "view",
    "without",
]
