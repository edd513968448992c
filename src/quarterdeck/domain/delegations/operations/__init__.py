"""The operations of delegations, each over a batch: load under the zones' locks, decide with `rules`, persist.

| module            | holds                                                                                      |
|-------------------|--------------------------------------------------------------------------------------------|
| create            | delegate                                                                                   |
| topological_order | loads, rebuilds and respaces the ranks by which `create` detects cycles                    |
| revoke            | revoke, including the sessions that it terminates                                          |
| on_session_ended  | the listener that revokes the edges of ended sessions, in the transaction of their end     |
| expiry            | marks edges as expired, and deletes edges that ended long ago                              |
| end_edges         | shared by these three: state change of edges, their events, and the zone's epoch           |
| reads             | show, list, traverse, authority and explain; also finds orphaned edges                     |
"""

from quarterdeck.domain.delegations.operations.create import create_edges
from quarterdeck.domain.delegations.operations.expiry import delete_expired, expire_edges, find_expired
from quarterdeck.domain.delegations.operations.on_session_ended import on_session_ended
from quarterdeck.domain.delegations.operations.reads import (
    explain,
    list_edges,
    list_session_edges,
    read_authority,
    show,
    traverse,
)
from quarterdeck.domain.delegations.operations.revoke import Revoker

__all__ = [
    "Revoker",
    "create_edges",
    "delete_expired",
    "expire_edges",
    "explain",
    "find_expired",
    "list_edges",
    "list_session_edges",
    "on_session_ended",
    "read_authority",
    "show",
    "traverse",
]
