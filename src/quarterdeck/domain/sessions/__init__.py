"""Sessions: one live run of an agent. Sessions form trees, and no tree can be overrun.

This room decides who may be admitted (`rules.admission`, over every bound of the quota table at once), what a session's
states are (`rules.lives`), what ends together and in which order (`rules.ending`), and who sleeps (`rules.suspension`).

Every admission, ending and suspension of a zone is decided under that zone's row lock, so the counts it judges by are
exact with any number of callers, lanes and replicas. The counts live in a narrow table of their own, one row per thing
that is bounded, and are moved in the same transaction as the sessions they count.

*Live* means active or suspended, not expired, and not stamped. A session past its `expires_at` that no sweep has
reached counts as gone everywhere: it reads as terminated, holds no key, parents nothing, and is subtracted from a bound
that would refuse.

**Endings.** A session takes its whole subtree with it. What fits into one transaction (`cascade_chunk`) ends in one.
A larger tree is *stamped* in one transaction: from that commit on all of it reads as terminated, has given its places
back and may start nothing. Chunks then settle it, children before parents, one event each. Whoever asked settles until
it is over; a second ask joins and helps; a sweep finishes what a killed server left half-way. Endings of one zone are
settled in the order in which they were stamped, so in the log no parent ends before its children, even where two
endings overlap.

**Suspension** is a flag on the session named. A session sleeps while it or an ancestor bears one, so suspensions nest:
clearing one flag wakes what no other holds. A sleeping session keeps its place and its time runs on.

How it fails. A refusal names its bound, its limit, how much is used and what would free it; `explain` tells the same
without asking for anything. A spawn repeated with its Idempotency-Key gives the same session while that lives, also
after a connection was cut between commit and answer. An ending interrupted anywhere is stamped whole or not at all.
A sweep that is late delays events, never truth.
"""
