"""Invocations: durable, idempotent calls to a service.

This component decides whether a request is a new invocation or a repeat, who gets which invocation and for how long,
what follows from a failed attempt, and which reports about an attempt still count.

    pending ──claim, start──► running ──complete──► succeeded | failed
       ▲                         │
       ├── retry (backoff) ◄─────┤ failed and retryable, or lease or deadline passed
       ├── release ◄─────────────┤ given back, or the claim's response was not delivered: the attempt does not count
       │                         ├──► timed_out   the deadline of the last attempt passed
       │                         └──► dead        the last attempt failed
       └── cancel ──► canceled ◄─────  cancel requested, and the holder reported or its lease or deadline passed

**One lane decides everything about a zone's invocations**, under the zone's row lock. A batch contains new invocations,
claims and completions side by side. It is loaded once, decided in order of arrival without I/O
(`rules.decider.BatchDecider`), and written in one commit. If a claim waits for work in the process that creates an
invocation, the same commit assigns the invocation to that claim. Waiting claims exist only in the memory of their
process; the row of an invocation records who holds its attempt. If a process dies with its waiting claims, their
invocations stay pending, or leased until their lease expires.

**An attempt has one holder.** The attempt counts from its start, so a worker that dies still uses up its attempts. Each
attempt has its own token. A completion with an older token is refused (`stale_attempt`), so a worker that was frozen
past its lease cannot overwrite a later attempt. A repeated completion gets the same response again. A claim or a start
that is repeated with its `claim_id` gets the same attempts again while they run. A repeated claim also renews their
leases, so that a late release of the first response has no effect.

**An invocation belongs to the sessions it names.** When a session ends, its open invocations are canceled in the same
transaction. While a session is suspended, its invocations cannot be claimed or started. Once a cascade has marked a
session as terminated, none of its invocations can start. If a session or a service has thousands of open invocations,
the first are canceled with it and the rest by a sweep (`operations.on_session_ended`). The guarantees do not depend on
that sweep: before an attempt starts, and at each report, the sessions and the service of the invocation are checked.

How it fails. A request that reuses an idempotency key with different parameters is refused (422). If a worker claims an
invocation and sends no heartbeat, its lease expires and the attempt counts as failed. A server that is killed loses its
waiting claims; their clients claim again, and with the same `claim_id` they get the same leases. While the database is
not reachable no attempt starts, and no invocation is lost.
"""
