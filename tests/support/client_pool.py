"""Callers that keep their connections: a race is run many times, and opening a hundred connections is no part of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from tests.support.raw_http import NoResponse, RawConnection, RawResponse, TruncatedResponse

SERVER_GONE = (ConnectionError, NoResponse, TruncatedResponse)
"""What a caller meets whose server has been killed."""


class HasUrl(Protocol):
    @property
    def url(self) -> str: ...


class ClientPool:
    """So many connections, open before anything is asked, the first to the first server, the second to the second …"""

    def __init__(self, connections: Sequence[RawConnection]) -> None:
        self.connections = connections

    async def send_all(self, request: bytes) -> list[RawResponse]:
        """Everybody asks the same in the same instant."""
        return await asyncio.gather(*(connection.send_and_read(request) for connection in self.connections))

    def start_all(self, request: bytes) -> list[asyncio.Task[RawResponse | None]]:
        """The same, for whoever wants to do something meanwhile. None is the answer of a server that is gone."""
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
