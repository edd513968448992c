"""Operations of delegations. A write loads a batch under the zones' locks, decides with `rules`, and writes the result.

| module            | what it does                                                                               |
|-------------------|--------------------------------------------------------------------------------------------|
| create            | creates edges                                                                              |
| topological_order | loads, rebuilds and respaces the ranks by which `create` detects cycles                    |
| revoke            | revokes edges, and terminates sessions that have no other inbound edge                     |
| end_edges         | ends edges: when they expire, when a session ends, and for `revoke`; deletes old edges     |
| reads             | shows, lists, traverses and explains edges, shows authority, finds orphaned edges          |
"""

from quarterdeck.domain.delegations.operations.end_edges import on_session_ended as on_session_ended
