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

from quarterdeck.domain.delegations.operations.create import delegate
from quarterdeck.domain.delegations.operations.expiry import expire, forget, past_their_time
from quarterdeck.domain.delegations.operations.on_session_ended import go_with_session
from quarterdeck.domain.delegations.operations.reads import authority, edges_of, explain, page, show, traverse
from quarterdeck.domain.delegations.operations.revoke import Revoker

__all__ = [
    "Revoker",
    "authority",
    "delegate",
    "edges_of",
    "expire",
    "explain",
    "forget",
    "go_with_session",
    "page",
    "past_their_time",
    "show",
    "traverse",
]
