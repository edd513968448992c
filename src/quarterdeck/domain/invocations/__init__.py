"""Invocations: durable, idempotent calls to a service.

This component decides whether a request is a new invocation or a repeat, who gets which invocation and for how long,
what follows from a failed attempt, and which reports about an attempt still count.

    pending ──claim, start──► running ──complete──► succeeded | failed
       ▲                         │
       ├── retry (backoff) ◄─────┤ failed and retryable, or lease or deadline passed
       ├── release ◄─────────────┤ the claim's response was not delivered: the attempt does not count
       │                         ├──► timed_out   the deadline of the last attempt passed
       │                         └──► dead        the last attempt failed
       └── cancel ──► canceled ◄─────  requested, and then ended by the holder, the lease or the deadline

**One lane decides everything about a zone's invocations**, under the zone's row lock. A batch contains new invocations,
claims and completions side by side. It is loaded once, decided in order of arrival without I/O
(`rules.decider.BatchDecider`), and written in one commit. An invocation that is created while a claim waits for work is
assigned to that claim in the same commit. Waiting claims are in the memory of one process. They are only a hint: the
row says who holds the attempt. If a process dies with its waiting claims, invocations stay pending, or leased until
their lease expires.

**An attempt has one holder.** The attempt counts from its start, so a worker that dies still uses up its attempts. Each
attempt has its own token. A completion with an older token is refused (`stale_attempt`), so a worker that was frozen
past its lease can do no harm. A repeated completion gets the same response again. A claim or a start that is repeated
with its `claim_id` gets the same attempts again. A repeated claim also renews their leases, so that a late release of
the first response has no effect.

**An invocation belongs to the sessions it names.** When one of them ends, it is canceled in the same transaction. While
one of them is suspended, it is not handed out. It cannot start once a cascade has marked one of them as terminated. If
a session or a service has thousands of open invocations, the first are canceled with it and the rest by a sweep
(`operations.on_session_ended`). The guarantees do not depend on that sweep: each claim and each report checks the
sessions and the service of the invocation.

How it fails. An idempotency key that is reused with different parameters is 422. A worker that sends no heartbeat loses
its lease, and the attempt counts as failed. A server that is killed loses its waiting claims; their clients claim
again, and with the same `claim_id` they get the same leases. While the database is not reachable nothing is handed out,
and nothing is lost.
"""
