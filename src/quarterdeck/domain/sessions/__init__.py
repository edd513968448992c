"""Sessions. A session is one live run of an agent. Sessions form trees, and quotas limit every tree.

This component decides which spawns are admitted (`rules.admission`), the states of a session (`rules.states`), what is
terminated together and in which order (`rules.cascade`), and what is suspended (`rules.suspension`).

Every admission, termination and suspension in a zone is decided under the zone's row lock, so the counts are exact with
any number of callers, lanes and replicas. The counts are in a narrow table (`admission_counts`), one row per limited
scope, and change in the same transaction as the sessions they count.

*Live* means active or suspended, not expired, and not marked by a cascade. An expired session stops counting
immediately, before any sweep runs: it reads as terminated, its idempotency key is free, and nothing can be spawned
under it. Before a count refuses a spawn, expired sessions are subtracted from it.

**Termination.** A session is terminated with its subtree. Up to `cascade_chunk` sessions are terminated in one
transaction. A larger tree is *marked* in one transaction: from that commit on, its sessions read as terminated, count
against no quota and cannot start anything. Chunks then terminate the marked sessions, children before parents, with one
event each. The request that started the cascade runs chunks until the cascade is finished. A second request for the
same sessions joins it and runs chunks too, and a sweep finishes the cascades of killed servers. Cascades in one zone
finish in the order in which they were marked, so in the event log no parent ends before its children, even if two
cascades overlap.

**Suspension** is a flag on one session. A session is suspended while it or an ancestor has the flag, so suspensions
nest: clearing one flag resumes only sessions that no other flag suspends. Suspended sessions still count against
quotas, their TTL keeps running, and they cannot have new children.

How it fails. A refusal names the bound, its limit, the used amount and what frees it; the explain routes report the
same without a spawn. A spawn that is repeated with its Idempotency-Key returns the same session while that session is
live, even if the connection broke between commit and response. An interrupted cascade is either marked completely or
not at all. A late sweep delays events but does not change the state that readers see.
"""
