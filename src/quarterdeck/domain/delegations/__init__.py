"""Delegations: directed edges by which one session lends authority to another. Authority only narrows.

An edge leads from the session that lends (its *source*) to the one that receives (its *target*). It lends scopes, for
certain resources or for all, for so many hops more, until a time. Every edge but a first one is derived from its
*parent*: an edge that leads to its own source and covers it. So each edge stands in a line of parents up to one that
was lent out of a caller's token.

**Narrowing** (`rules.narrowing`). Against its parent: scopes and resources are a part of the parent's, hops fewer,
expiry no later; of actions and budget what the parent bounds stays bounded. Without a `parent_edge_id` the parent is
the covering edge that expires last. A session that an edge ever led to lends by its edges alone, also when all of them
are over: otherwise the end of an edge would widen what its receiver may lend. Only one that no edge ever led to lends
out of the token of whoever asks, and a token that names an edge is held to that edge.

**The graph** (`rules.order`). Active edges form no cycle: an edge is refused if its source can be reached from its
target. The sessions of a zone stand in an order in which ranks rise along every active edge, so an edge that goes the
same way closes none, and nothing is walked. One that goes against it is judged by what lies between its two ends,
walked from both sides with one visited set each, however long or parallel the ways are; then the smaller side moves.

**Revoking** takes an edge and all that are derived from it. A target that is left without an active edge into it ends,
with its subtree; and since the edges of an ended session are over, so does whoever held nothing but those. All of it is
decided in one transaction, from the graph as it stands under the zone's lock; who ends is one ending, settled in chunks
where it is large. With `keep_sessions` nobody ends, and they run on without the authority.

| state   | left by                                                                              |
|---------|--------------------------------------------------------------------------------------|
| active  | revoke: by somebody, with its parent, or with a session it leads from or to; expire    |
| revoked | nothing                                                                               |
| expired | nothing; nobody is ended by it                                                        |

An edge past its `expires_at` that no sweep has reached reads as expired, and covers nothing. It lasts no longer than
its parent and both its sessions. Nor does one cover anything, or hold anybody, whose lender, or a lender further up its
line, has ended, even before that ending is settled: it is *hollow*.

The zone's *epoch* rises by one with every transaction that changes an edge, and stands in each event: whoever caches
decisions by edges compares one number.

How it fails. Everything is decided under the zone's row lock, so of two edges that would close a cycle together one is
refused, on any number of replicas. A zone whose edges somebody has changed who knew of no order is put in order by the
next who lends in it; where ranks have no room left they are spaced anew, which is logged. A refusal for want of
authority names every part in which the edge exceeds. Creating again with the same Idempotency-Key gives the same edge
while it is active; revoking again moves nothing. If ending the sessions takes more than one transaction, all of them
read as ended from the first one on, and a sweep finishes what a killed server left. Constraints of other names are
kept and shown, and never interpreted here: whoever enforces them reads the whole line, which `explain` shows.
"""
