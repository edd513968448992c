"""Callers that keep their connections: a race is run many times, and opening a hundred connections is no part of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from tests.support.raw import Answer, Connection, CutShort, Unanswered

GONE = (ConnectionError, Unanswered, CutShort)
"""What a caller meets whose server has been killed."""


class Server(Protocol):
    @property
    def url(self) -> str: ...


class Callers:
    """So many connections, open before anything is asked, the first to the first server, the second to the second …"""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self.connections = connections

    async def at_once(self, asked: bytes) -> list[Answer]:
        """Everybody asks the same in the same instant."""
        return await asyncio.gather(*(connection.ask(asked) for connection in self.connections))

    def begin(self, asked: bytes) -> list[asyncio.Task[Answer | None]]:
        """The same, for whoever wants to do something meanwhile. None is the answer of a server that is gone."""
        return [asyncio.create_task(_ask(connection, asked)) for connection in self.connections]


async def _ask(connection: Connection, asked: bytes) -> Answer | None:
    try:
        return await connection.ask(asked)
    except GONE:
        return None


@contextlib.asynccontextmanager
async def callers_of(servers: Sequence[Server], number: int) -> AsyncIterator[Callers]:
    connections = [await Connection.open(servers[n % len(servers)].url) for n in range(number)]
    try:
        yield Callers(connections)
    finally:
        for connection in connections:
            await connection.close()
