"""The mechanisms that all components share: transactions, group commit, one ordered event log, leases, sweeps.

| module             | holds                                                                                       |
|--------------------|---------------------------------------------------------------------------------------------|
| background         | asyncio tasks that no caller awaits, and the base class of background loops                 |
| delivery_scheduler | finds due deliveries to external endpoints, and limits how many run at once                 |
| event_log          | the event log: one row per transition, numbered in commit order                             |
| event_retention    | deletes old events, up to a position that a seal has attested                               |
| event_subscriber   | the state of one reader of a zone's events: position, queue, live or behind                 |
| event_tailer       | one log reader per process, which feeds all subscribers once and in order                   |
| idempotency        | idempotency keys in the database, and their retention                                       |
| lanes              | group commit: which commands share a transaction, and how each failure is handled           |
| leader_loop        | background work that only the holder of a lease does                                        |
| leases             | the right of one process to do something alone, with numbered terms to fence old holders    |
| log_sealer         | signs ranges of the event log                                                               |
| long_poll          | claims that wait in this process, and the watcher that serves them                          |
| mirrors            | Redis copies of tasks, agents, slot counters and heartbeats, and their repair               |
| outbound_http      | the HTTP client for calls to external endpoints, with limits and SSRF checks                |
| queries            | the SQL statements of this package                                                          |
| secrets            | encryption of secret values before they are written                                         |
| settings           | the settings of this package                                                                |
| sinks              | ordered delivery of events to other systems, with retries of rejected entries               |
| sweep_passes       | the forms of a pass: delete old rows, find rows and submit commands, scan a table           |
| sweeps             | bounded background passes that are repeated                                                 |
| transaction        | the transaction of an operation: read, write, emit events, commit                           |
| wakeups            | notifications that something was committed, within and between processes                    |
| zone_queue         | the queue of a lane: fair between zones, bounded                                            |

How it fails. A refused command does not affect the other commands of its batch. A command with a value that the
database rejects is found by bisecting the batch. After a lost connection or a lock timeout, the batch is retried a few
times with jitter, and then the response is 503; if no connection can be opened, it is 503 without a retry. If the
connection is lost during COMMIT, the outcome is looked up until it is certain; after five seconds the response is 503
`outcome_unknown`. No response, event or wake-up leaves this process before its transaction is committed.
"""
