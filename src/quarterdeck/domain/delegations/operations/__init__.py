"""What can be done with delegations, each verb over a batch: load under the zones' locks, decide by `rules`, write.

| module     | verbs                                                                                     |
|------------|---------------------------------------------------------------------------------------------|
| lending    | delegate                                                                                    |
| ordering   | the order by which lending sees that there is no cycle: looked at, made, spaced anew          |
| revoking   | revoke, with the sessions that end by it                                                     |
| following  | what goes with sessions that end: a listener, in the transaction of their ending              |
| expiring   | expire what is past its time; forget what was over long ago                                   |
| ending     | what those three share: edges that leave their state, their events, and the zone's epoch      |
| holding    | which edges are hollow: a session they were lent by has ended                                 |
| looking    | show, list, traverse, authority, why                                                         |
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
