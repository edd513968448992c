"""Other queues, measured beside Quarterdeck in the same run, each from PyPI in an environment of its own.

`driver` runs under that environment: it is told which queue and which verb, reads an order from its standard input, and
says how long it took. What a queue can do is a few functions in a module of its own (`contract.Peer`), and Quarterdeck
is one of them, driven by the same lines through its SDK. `environment` makes the environments, `contest` runs them.

| module         | queue                                                        | durable by                         |
|----------------|--------------------------------------------------------------|------------------------------------|
| quarterdeck_   | a server over HTTP, and the SDK                              | its database                       |
| pgqueuer_      | PgQueuer, asyncpg                                            | PostgreSQL                         |
| procrastinate_ | Procrastinate, psycopg                                       | PostgreSQL                         |
| celery_        | Celery with Redis, one process that works by itself (`solo`) | Redis' log, written and not synced |
| taskiq_        | taskiq with Redis streams, whose messages are acknowledged   | the same                           |

What agents type in fleets is measured beside cafleet, which has commands and no queue: `bench.message_commands` runs them, from an
environment made here.

A peer runs as it would be used well: on uvloop if it has a loop at all, with batches and connections as large as help
it. How it fails: an environment that cannot be made, or a peer that does not do what it is told, is left
out with a sentence in the report, and the others go on.
"""
