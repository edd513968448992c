"""Several servers on one PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

from tests.support.server import Launch, ServerProcess, Servers


async def start_replicas(servers: Servers, url: str, count: int) -> list[ServerProcess]:
    """Start servers on one database that share their keys, so that a token is valid at all of them."""
    first = await servers.start(Launch(servers.directory / "replica-1", url))
    return await add_replicas(first, servers, count - 1)


async def add_replicas(first: ServerProcess, servers: Servers, count: int) -> list[ServerProcess]:
    """Return `first` and `count` more servers with its settings on its database."""
    return [first, *[await start_replica(first, servers) for _ in range(count)]]


async def start_replica(first: ServerProcess, servers: Servers, **variables: str) -> ServerProcess:
    """Start a server with the settings of `first`, which need not run any more, and with these variables."""
    key = first.launch.environment.get("QD_SIGNING_KEY", str(first.launch.data / "signing-key.pem"))
    data_dir = servers.directory / f"added-replica-{len(servers.started) + 1}"
    shared = {"QD_SIGNING_KEY": key, "QD_SECRET_KEYS": first.secret_keys}
    return await servers.start(replace(first.launch, data=data_dir).with_environment(**shared, **variables))


async def start_all_replicas(servers: Servers, launch: Launch, **variables: str) -> list[ServerProcess]:
    """Start as many servers as the engine allows on one database: one on SQLite, three on PostgreSQL."""
    first = await servers.start(launch.with_environment(**variables))
    return await add_replicas(first, servers, 0 if launch.database is None else 2)
