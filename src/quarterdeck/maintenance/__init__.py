"""Offline tools for a database: verify its event log, check its consistency, back it up.

| module          | holds                                                                                        |
|-----------------|----------------------------------------------------------------------------------------------|
| snapshot        | reads all rows of a database in one read-only snapshot                                       |
| audit           | `qd audit verify` and `qd audit anchor`: verify the event log (rules in `core.audit_verify`) |
| audit_keys      | the public keys that verify seals, loaded from files                                         |
| consistency     | `qd check`: compares counters, trees, cascades, tasks, fleets, leases and the event log      |
| history_checker | `qd check --history`: compares recorded client calls with the event log and the rows         |
| backup          | `qd db backup`: copies a SQLite file while its server is running                             |

These tools read the database directly and need no server: a server cannot prove that its own data is intact, and during
an incident no server may be running. They work while a server is under load, without a server, and on a restored copy.
They write nothing to the database they read.

Errors. If the database cannot be read, the tool prints one error and exits with 1 before it checks anything. Examples
are a missing file, a schema from another release, and a login from which row-level security hides rows. Findings are
printed to standard output, one per line, also with exit code 1. Only exit code 0 means that nothing was found.
"""
