"""Several servers on one PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

from tests.support.server import Launch, ServerProcess, Servers


async def replicas_of(servers: Servers, url: str, number: int) -> list[ServerProcess]:
    """Servers on one database that share their keys, so that one token is good at all of them."""
    first = await servers.start(Launch(servers.directory / "replica-1", url))
    return await joined_by(first, servers, number - 1)


async def joined_by(first: ServerProcess, servers: Servers, more: int) -> list[ServerProcess]:
    """A server, and more that are told the same on the same database."""
    return [first, *[await another(first, servers) for _ in range(more)]]


async def another(first: ServerProcess, servers: Servers, **variables: str) -> ServerProcess:
    """One more beside a server, which need not run any longer; told the same, and more."""
    key = first.launch.environment.get("QD_SIGNING_KEY", str(first.launch.data / "signing-key.pem"))
    own = servers.directory / f"replica-beside-{len(servers.started) + 1}"
    shared = {"QD_SIGNING_KEY": key, "QD_SECRET_KEYS": first.secret_keys}
    return await servers.start(replace(first.launch, data=own).told(**shared, **variables))


async def all_that_can_be(servers: Servers, launch: Launch, **variables: str) -> list[ServerProcess]:
    """As many servers on one database as its engine can have: one on SQLite, three on PostgreSQL."""
    first = await servers.start(launch.told(**variables))
    return await joined_by(first, servers, 0 if launch.database is None else 2)
