"""Looking after a database from outside the server: proving its log, checking its sums, copying it.

| module   | what it decides                                                                             |
|----------|-----------------------------------------------------------------------------------------------|
| snapshot | how a database is read whole, as of one moment, by somebody who changes nothing               |
| audit    | `qd audit verify`, `qd audit anchor`: is the log what it was (the judging is `core.proof`'s)   |
| check    | `qd check`: do counters, trees, cascades, tasks, fleets, leases and log agree with each other   |
| history  | `qd check --history`: what clients wrote down of their calls, held against log and rows        |
| backup   | `qd db backup`: a copy of a SQLite file, taken while its server works                          |

All of these read the database themselves and ask no server: a process under suspicion proves nothing, and at three in
the morning there may be none. They work beside a server under load, on a database whose server is gone, and on a copy
that was restored elsewhere, and they write nothing to what they read.

How it fails. What cannot be read is a sentence and exit code 1, before anything is said about the content: no such
file, a schema of another release, a login that row-level security would show only a part. What was read and is wrong is
told line by line on standard output, exit code 1, too. Only 0 means that all is well.
"""
