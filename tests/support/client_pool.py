"""Clients with open connections. A race runs many times, and the time to connect must not be part of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from tests.support.raw_http import NoResponse, RawConnection, RawResponse, TruncatedResponse

SERVER_GONE = (ConnectionError, NoResponse, TruncatedResponse)
"""What a client gets when its server was killed."""


class HasUrl(Protocol):
    @property
    def url(self) -> str: ...


class ClientPool:
    """Connections that are open before the first request, distributed over the servers in turn."""

    def __init__(self, connections: Sequence[RawConnection]) -> None:
        self.connections = connections

    async def send_all(self, request: bytes) -> list[RawResponse]:
        """Send the same request on every connection at the same time."""
        return await asyncio.gather(*(connection.send_and_read(request) for connection in self.connections))

    def start_all(self, request: bytes) -> list[asyncio.Task[RawResponse | None]]:
        """Like `send_all`, but return at once. The result is None where the server is gone."""
        return [asyncio.create_task(_send_or_none(connection, request)) for connection in self.connections]


async def _send_or_none(connection: RawConnection, request: bytes) -> RawResponse | None:
    try:
        return await connection.send_and_read(request)
    except SERVER_GONE:
        return None


@contextlib.asynccontextmanager
async def open_clients(servers: Sequence[HasUrl], count: int) -> AsyncIterator[ClientPool]:
    connections = [await RawConnection.open(servers[n % len(servers)].url) for n in range(count)]
    try:
        yield ClientPool(connections)
    finally:
        for connection in connections:
            await connection.close()
