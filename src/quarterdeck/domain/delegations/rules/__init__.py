"""Pure rules of delegations: no I/O, no clock, no randomness.

| module            | decides                                                                                  |
|-------------------|------------------------------------------------------------------------------------------|
| states            | the states of an edge, its current status, its view, and the errors                      |
| constraints       | parses a request body: constraints, times and hops                                       |
| attenuation       | whether an edge or a token covers a request                                              |
| topological_order | whether an edge closes a cycle: ranks that increase along every edge                     |
| graph             | which edges and sessions a revocation ends; which edges are orphaned; distances          |
| creation          | which edges are created: ownership, keys, cycles and authority, in order of arrival      |
| authority         | the authority that a session has from its inbound edges                                  |
| explain           | why an edge is in its state, and what cannot be derived from it                          |
"""

from quarterdeck.core.ids import Ref
from quarterdeck.domain.delegations.rules.authority import session_authority
from quarterdeck.domain.delegations.rules.constraints import build_command, normalize_body
from quarterdeck.domain.delegations.rules.creation import CREATE_OPERATION, DelegationBatchInput, DelegationDecider
from quarterdeck.domain.delegations.rules.graph import Revocation, RevocationGraph, edges_by_level, find_orphaned
from quarterdeck.domain.delegations.rules.states import (
    DELEGATION_REVOKED,
    DELEGATION_STATES,
    EXPIRED_REASON,
    SESSION_ENDED,
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
