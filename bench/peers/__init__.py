"""Other queues, measured in the same run as Quarterdeck, each from PyPI in its own virtual environment.

`driver` runs in that environment: its arguments are a queue and a verb, it reads options from its standard input and
prints the result. Each queue is a module with the functions of `contract.Peer`. Quarterdeck is one of them, driven by
the same code through its SDK. `virtualenvs` creates the environments, `comparison` runs the queues, `ratios` compares
them.

| module         | queue                                                        | durable by                         |
|----------------|--------------------------------------------------------------|------------------------------------|
| quarterdeck_   | a server over HTTP, and the SDK                              | its database                       |
| pgqueuer_      | PgQueuer, asyncpg                                            | PostgreSQL                         |
| procrastinate_ | Procrastinate, psycopg                                       | PostgreSQL                         |
| celery_        | Celery with Redis, one process (`solo`)                      | Redis' log, written but not synced |
| taskiq_        | taskiq with Redis streams, whose messages are acknowledged   | Redis' log, written but not synced |

The fleet commands are compared with cafleet, which is a command-line program without a queue: `bench.message_commands`
runs it from an environment created here.

Each peer is configured for speed: uvloop if it has an event loop, and the batch size and connections that suit it best.

How it fails. If an environment cannot be created, or a peer fails, it is excluded with a note in the report, and the
others are measured.
"""
