"""Quarterdeck inside another program: the same rooms, the same client, and no socket between them.

    async with quarterdeck.embedded("work") as qd:
        await qd.tasks.create("tidy up", "housekeeping")

| module | what it decides                                                                                 |
|--------|-------------------------------------------------------------------------------------------------|
| house  | on what it stands: a data directory, its lock, its keys, its schema; its beginning and its end   |
| inward | how a call of the SDK reaches the shell, and its answer or its stream comes back                 |

Everything that a server does happens here, too: sweeps run, the coordinator takes its turns, events are followed,
tokens are checked. What the client bears is a token of the directory's own issuer, so a call is allowed or refused as
it would be over HTTP. What is missing is whatever listens: nobody outside this program is served.

On SQLite the directory belongs to one process at a time, a server or a program that embeds one; on PostgreSQL several
of both may share a database, as replicas do.

How it fails. A directory that another process holds, a schema that is ahead of this release, a key that is not the
database's: each is a `SettingsError` with a sentence, before anything is touched. A program that dies in the middle
leaves what a killed server would: what was committed, and leases that run out.
"""

from quarterdeck.embedded_server.server import Embedded, EmbeddedConfig

__all__ = ["Embedded", "EmbeddedConfig"]
