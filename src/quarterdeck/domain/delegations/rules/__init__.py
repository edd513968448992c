"""The pure part of delegations, one file per question.

| module     | what it answers                                                                     |
|------------|---------------------------------------------------------------------------------------|
| lives      | which states an edge has, how it reads at a moment, how it is shown, what is refused    |
| asking     | what a body asks for: its constraints understood, its times and hops in one place       |
| narrowing  | whether one edge covers another, and what is left of what it lends                      |
| order      | whether an edge closes a cycle: ranks that rise along every edge                         |
| graph      | what falls with an edge; what is hollow; what is how far ahead                          |
| lending    | which edges are made: ownership, keys, cycles and authority, in order of arrival        |
| authority  | what a session holds                                                                  |
| explaining | why an edge is as it is, and what it would refuse                                     |
"""

from quarterdeck.domain.delegations.rules.authority import authority
from quarterdeck.domain.delegations.rules.constraints import asked, defaulted
from quarterdeck.domain.delegations.rules.creation import CREATE, Known, Ledger
from quarterdeck.domain.delegations.rules.graph import Falling, Fell, hollow, levels
from quarterdeck.domain.delegations.rules.states import (
    DELEGATION,
    DELEGATION_REVOKED,
    TIME_IS_UP,
    WITH_SESSION,
    Ref,
    as_read,
    holds,
    not_found,
    view,
)

__all__ = [
    "CREATE",
    "DELEGATION",
    "DELEGATION_REVOKED",
    "TIME_IS_UP",
    "WITH_SESSION",
    "Falling",
    "Fell",
    "Known",
    "Ledger",
    "Ref",
    "as_read",
    "asked",
    "authority",
    "defaulted",
    "holds",
    "hollow",
    "levels",
    "not_found",
    "view",
]
