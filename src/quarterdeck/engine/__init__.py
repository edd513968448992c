"""The machinery every room stands on: group commit, one ordered log, leases, sweeps.

| module       | what it decides                                                                            |
|--------------|--------------------------------------------------------------------------------------------|
| tx           | what an operation may do in a transaction: read, write, emit; `within` listeners; the commit |
| lanes        | which commands share a transaction, and what becomes of each when that goes wrong            |
| queue        | whose turn it is when a lane is full, and who is refused when its queue is                    |
| events       | the log: one row per transition, numbered in commit order                                    |
| wake         | who is told that there is something new in the log, here and in other processes                |
| tail         | what of the log is told to those who follow it, once and in order, however many they are        |
| follower     | where one of them stands, what waits for it, and when it reads the log by itself                |
| seals        | what of the log is signed, so that it can be proved later                                    |
| retention    | which events may go, and that a seal has said so before they do                              |
| duties       | who alone does what follows a commit, and when it tries again                                  |
| sinks        | what is told to other systems, once and in order, and what becomes of what they refuse          |
| slots        | what others are shown of a zone's slots, and that it is put right                              |
| mirror       | what others are shown of tasks and agents, and that it is as their rows say                    |
| beats        | which heartbeats others are shown, and which are lost                                          |
| idempotency  | whether a key has been used, and for what                                                    |
| waiting      | who waits for work in this process, and who tells them that there is some                      |
| leases       | who alone may run a pass, by numbered terms that fence the ones before                       |
| sweeps       | how bounded passes repeat, and how a test waits for one                                      |
| errands      | what becomes of tasks that nobody waits for, and how long they insist on being heard           |
| outgoing     | what is to be sent to somebody's endpoint, and how much of it at once                          |
| outward      | what this process may call outside, and within which bounds                                  |
| secrets      | what is sealed before it is written, with which key, and for whom it opens                     |

How it fails. A refusal is an outcome of its own command and costs its neighbours nothing. A value the database
refuses is found by bisecting its batch. A lost connection, a lock that timed out or a database that is away is
retried with jitter, then answered 503. A connection lost during COMMIT is asked about until the answer is certain;
after five seconds without one the answer is 503 `outcome_unknown`. Nothing is guessed, and nothing leaves this
process before it is committed.
"""
