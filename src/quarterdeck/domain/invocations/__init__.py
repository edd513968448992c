"""Invocations: durable, idempotent calls to a service.

This room decides whether a call is a new one or one that was made before, who gets which call and until when, what
follows from an attempt that failed, and which word about an attempt still counts.

    pending ──claim, start──► running ──complete──► succeeded | failed
       ▲                         │
       ├── retry (backoff) ◄─────┤ failed and may be tried again, lease or deadline passed
       ├── release ◄─────────────┤ its answer could not be delivered: the attempt does not count
       │                         ├──► timed_out   the deadline of the last attempt passed
       │                         └──► dead        the last attempt failed
       └── cancel ──► canceled ◄─────  asked for, and its holder, its lease or its deadline ended it

**Everything about a zone's invocations is decided in one lane**, under the zone's row lock. So a batch holds calls,
claims and completions side by side, is loaded once, decided in order of arrival by one pure object
(`rules.board.Board`), and written in one commit. A call that arrives while somebody waits for work is handed over in
that same commit. Whoever waits does so in the memory of one process; that is a hint, never the truth: the row says who
holds what, and a process that dies with its waiters leaves calls pending, or leased until their lease ends.

**An attempt has one holder.** It is counted when it begins, so a worker that dies still exhausts its attempts. It has a
token of its own; a completion with an older token is refused (`stale_attempt`), so a worker that was frozen past its
lease can do no harm. The same completion said twice is answered twice, whatever it came to. A claim or a start that is
repeated with its `claim_id` is given the same again, with another lease: what gives the first answer back is too late.

**A call belongs to the sessions it names.** When one of them ends, it is canceled in the same transaction; while one of
them is suspended it is not handed out; from the stamp of a cascade on it cannot begin. Of a session or a service with
thousands of calls some are settled with it and the rest by a sweep (`operations.settling`); what is promised does not
depend on that, because whoever hands out a call, or hears of it, asks after its sessions and its service.

How it fails. A key used with other params is 422. A worker that goes silent loses its lease, and the attempt counts as
failed. A server that is killed loses its waiters, who ask again; with the same `claim_id` they get the same leases.
While the database is away nothing is handed out, and nothing is lost.
"""
