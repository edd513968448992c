"""Operations of delegations. A write loads a batch under the zones' locks, decides with `rules`, and writes the result.

| module            | what it does                                                                               |
|-------------------|--------------------------------------------------------------------------------------------|
| create            | creates edges                                                                              |
| topological_order | loads, rebuilds and respaces the ranks by which `create` detects cycles                    |
| revoke            | revokes edges, and terminates sessions that have no other inbound edge                     |
| on_session_ended  | the listener that revokes the edges of a session in the transaction that ends the session  |
| expiry            | marks edges as expired, and deletes edges that ended long ago                              |
| end_edges         | used by all writes: changes the state of edges, builds events, raises the zone's epoch     |
| reads             | shows, lists, traverses and explains edges, shows authority, finds orphaned edges          |
"""

from quarterdeck.domain.delegations.operations.on_session_ended import on_session_ended as on_session_ended
