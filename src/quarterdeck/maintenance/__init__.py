"""Offline tools for a database: verify its event log, check its consistency, back it up.

| module          | holds                                                                                        |
|-----------------|----------------------------------------------------------------------------------------------|
| snapshot        | reads all rows of a database in one read-only snapshot                                       |
| audit           | `qd audit verify` and `qd audit anchor`: verify the event log (rules in `core.audit_verify`) |
| audit_keys      | the public keys that seals are verified with, from files                                     |
| consistency     | `qd check`: compares counters, trees, cascades, tasks, fleets, leases and the event log      |
| history_checker | `qd check --history`: compares recorded client calls with the event log and the rows         |
| backup          | `qd db backup`: copies a SQLite file while its server runs                                   |

These tools read the database directly and need no server. A server that is itself under suspicion could not prove
anything, and during an incident there may be none. They work beside a server under load, on a database without a
server, and on a restored copy. They write nothing to the database they read.

How it fails. If the database cannot be read, the tool prints one error and exits with 1 before it checks anything: a
missing file, a schema of another release, or a login that row-level security confines to some of the rows. Findings are
printed to standard output, one per line, also with exit code 1. Only exit code 0 means that nothing was found.
"""
