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

from quarterdeck.domain.delegations.rules.states import DELEGATION_STATES as DELEGATION_STATES
