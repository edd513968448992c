"""Quarterdeck inside another program: the same components and the same client, without a socket between them.

    async with quarterdeck.embedded("work") as qd:
        await qd.tasks.create("tidy up", "housekeeping")

| module    | what it does                                                                              |
|-----------|-------------------------------------------------------------------------------------------|
| server    | start and stop: data directory, lock, keys, schema                                        |
| transport | passes the SDK's calls to the dispatcher, and returns responses and streams               |

An embedded server does everything that a server does: sweeps and the coordinator run, events can be followed, and
tokens are checked. The client has a token from the directory's own issuer, so calls are allowed or refused as over
HTTP. Only the listening sockets are missing: other programs cannot connect.

On SQLite only one process at a time can use the directory: a server, or a program that embeds one. On PostgreSQL any
number of servers and embedding programs may share a database, as replicas do.

How it fails. Starting raises `SettingsError` if another process is using the directory, the schema is newer than this
release, or the keys do not match the database. A killed program leaves the same state as a killed server: everything
that was committed, and leases that expire.
"""

from quarterdeck.embedded_server.server import Embedded, EmbeddedConfig

__all__ = ["Embedded", "EmbeddedConfig"]
