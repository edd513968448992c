"""Delegations: directed edges by which one session lends authority to another. Authority only narrows.

An edge leads from the session that lends (its *source*) to the session that receives (its *target*). It lends scopes,
for all resources or for named ones, until it expires. Its hops are the number of edges that may still follow it in a
chain. An edge is either created from a caller's token or derived from its *parent*, an edge into its source that covers
it. So the chain of an edge's parents ends at an edge that was created from a token.

**Attenuation** (`rules.attenuation`). Scopes and resources are a subset of the parent's, hops are fewer, expiry is no
later, and actions and budget stay within the parent's limits. Without `parent_edge_id` the parent is the covering edge
that expires last. A session that was ever the target of an edge can lend only from its inbound edges, even when all of
them have ended: otherwise ending an edge would widen what its target may lend. A session that was never a target
lends from the token of the caller. A token that names an edge can lend only from that edge.

**The graph** (`rules.topological_order`). Active edges form no cycle: an edge is refused if its target already reaches
its source. The sessions of a zone have ranks that increase along every active edge. A new edge from a lower to a higher
rank cannot close a cycle, so nothing is searched. For an edge from a higher to a lower rank, two regions between these
ranks are searched: the sessions reachable from the target, and those from which the source is reachable. Each search
visits a session once. Then the smaller of the two regions moves to new ranks.

**Revocation** ends an edge and all edges derived from it. A target without any other active inbound edge is terminated
with its subtree. The edges of a terminated session end too, so sessions that depend only on those are also terminated.
All of this is decided in one transaction under the zone's lock. The sessions are terminated as one cascade, in chunks
if it is large. With `keep_sessions`, no session is terminated; the sessions continue without the authority.

| state   | next transition                                                                               |
|---------|-----------------------------------------------------------------------------------------------|
| active  | revoke (requested, with its parent, or when its source or target session ends), or expire     |
| revoked | none                                                                                          |
| expired | none; expiry terminates no session                                                            |

An edge past its `expires_at` is shown as expired and covers nothing, even before a sweep marks it. An edge expires no
later than its parent and its two sessions. An edge is *orphaned* when its source session, or a source session further
up its chain, has ended and the cascade has not revoked the edge yet. An orphaned edge covers nothing and does not keep
its target alive.

The zone's *epoch* increases by one with every transaction that changes an edge, and is part of each event. A client
that caches decisions about edges compares this one number.

Errors and repair. Every change is decided under the zone's row lock, so of two edges that together would close a cycle
one is refused, with any number of replicas. If a writer that does not maintain ranks has changed a zone's edges, the
next delegation in the zone rebuilds the ranks. If no rank is free where one is needed, the zone's ranks are respaced,
and a warning is logged. A refusal for lack of authority names every part that exceeds the parent. Repeating a creation
with the same Idempotency-Key returns the same edge while it is active; repeating a revocation changes nothing. If
terminating the sessions takes more than one transaction, all of them are shown as terminated after the first one. If
the server dies in between, a sweep terminates the remaining ones. Unknown constraints are stored and returned but not
interpreted: a client that enforces them must read the chain, which `explain` returns.
"""
