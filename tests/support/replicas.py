"""Several servers on one PostgreSQL."""

from __future__ import annotations

from tests.support.server import Launch, ServerProcess, Servers


async def replicas_of(servers: Servers, url: str, number: int) -> list[ServerProcess]:
    """Servers on one database that share a signing key, so that one token is good at all of them."""
    first = await servers.start(Launch(servers.directory / "replica-1", url))
    key = str(first.launch.data / "signing-key.pem")
    others = [
        await servers.start(Launch(servers.directory / f"replica-{n}", url).told(QD_SIGNING_KEY=key))
        for n in range(2, number + 1)
    ]
    return [first, *others]
