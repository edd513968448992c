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

from quarterdeck.domain.delegations.rules.authority import session_authority
from quarterdeck.domain.delegations.rules.constraints import build_command, normalize_body
from quarterdeck.domain.delegations.rules.creation import CREATE_OPERATION, DelegationBatchInput, DelegationDecider
from quarterdeck.domain.delegations.rules.graph import Revocation, RevocationGraph, edges_by_level, find_orphaned
from quarterdeck.domain.delegations.rules.states import (
    DELEGATION_REVOKED,
    DELEGATION_STATES,
    EXPIRED_REASON,
    SESSION_ENDED,
    Ref,
    is_active,
    not_found,
    view,
    with_current_status,
)

__all__ = [
    "CREATE_OPERATION",
    "DELEGATION_REVOKED",
    "DELEGATION_STATES",
    "EXPIRED_REASON",
    "SESSION_ENDED",
    "DelegationBatchInput",
    "DelegationDecider",
    "Ref",
    "Revocation",
    "RevocationGraph",
    "build_command",
    "edges_by_level",
    "find_orphaned",
    "is_active",
    "normalize_body",
    "not_found",
    "session_authority",
    "view",
    "with_current_status",
]
