"""Invocations: durable, idempotent calls to a service.

This component decides whether a request is a new invocation or a repeat, which worker gets which invocation and for
how long, what happens after a failed attempt, and which reports about an attempt are still accepted.

    pending ──claim, start──► running ──complete──► succeeded | failed
       ▲                         │
       ├── retry (backoff) ◄─────┤ failed and retryable, lease expired, or deadline passed
       ├── release ◄─────────────┤ given back, or the claim's response was not delivered: the attempt does not count
       │                         ├──► timed_out   the deadline of the last attempt passed
       │                         └──► dead        the last attempt failed
       └── cancel ──► canceled ◄─────  cancel requested, and the holder reported, or the lease or deadline ended

**One lane decides everything about a zone's invocations**, under the zone's row lock. A batch contains new invocations,
claims and completions side by side. It is loaded once, decided in order of arrival without I/O
(`rules.decider.BatchDecider`), and written in one commit. If a claim is waiting in the process that creates an
invocation, the same commit assigns the invocation to that claim. Waiting claims exist only in the memory of their
process; the row of an invocation records who holds its attempt. If a process dies, its waiting claims are lost.
Invocations that it assigned but did not deliver stay leased until their leases expire; the others stay pending.

**An attempt has one holder.** An attempt counts from its start, so a worker that dies still uses one up. Each attempt
has its own token. A completion with an older token is refused (`stale_attempt`), so a worker that was frozen past its
lease cannot overwrite a later attempt. A repeated completion gets the same response again. A claim or a start that is
repeated with its `claim_id` gets the same attempts again while they are running. A repeated claim also renews their
leases, so that a late release of the first response has no effect.

**An invocation belongs to the sessions it names.** When a session ends, its open invocations are canceled in the same
transaction. While a session is suspended, its invocations cannot be claimed or started. Once a cascade has marked a
session as terminated, none of its invocations can start. If a session or a service has thousands of open invocations,
its transaction cancels about 1,000 of them and a sweep cancels the others (`operations.on_session_ended`). The
guarantees do not depend on that sweep: the decider checks the invocation's sessions and service before an attempt
starts and at each report.

How it fails. A request that reuses an idempotency key with different parameters is refused (422). If a worker claims an
invocation and sends no heartbeat, its lease expires and the attempt counts as failed. A server that is killed loses its
waiting claims; their clients claim again, and with the same `claim_id` they get the same leases. While the database is
unreachable, no attempt starts, and no invocation is lost.
"""
