"""Connections to one server, kept while both sides keep them.

The one that was used last is used first: in a quiet hour the others grow old and are closed, before the server closes
them. A request that nobody could repeat does not go out on a connection that may have been closed meanwhile: it gets
one that was used a moment ago, or a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable

from quarterdeck.client.http_async import AsyncConnection
from quarterdeck.client.http_types import Address, Lost, Response, TimedOut, Unreachable, error_text

IDLE_SECONDS = 60.0
"""Less than the 75 s after which the server closes what is idle."""
FRESH_SECONDS = 1.0
PeerCheck = Callable[[socket.socket], None]
"""Raises what speaks against whoever listens at the other end, before anything is sent."""


class Connector:
    """How a server is reached."""

    def __init__(
        self, address: Address, check_peer: PeerCheck | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self._check_peer = check_peer
        self._tls = tls

    async def open(self, seconds: float) -> AsyncConnection:
        """A new connection. Raises `Unreachable` or `TimedOut`, and then nothing was sent."""
        try:
            async with asyncio.timeout(seconds):
                return await self._connect()
        except TimeoutError:
            raise TimedOut(
                "connect_timeout", f"{self.address} did not accept a connection within {seconds:g} s."
            ) from None
        except (OSError, UnicodeError) as error:
            raise Unreachable(
                "server_unreachable", f"No server answers at {self.address}: {error_text(error)}."
            ) from error

    async def _connect(self) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        connection = AsyncConnection(self.address)
        if self.address.scheme == "unix":
            await loop.create_unix_connection(lambda: connection, sock=await self._connect_unix(loop))
        elif self.address.scheme == "https":
            context = self._tls or ssl.create_default_context()
            host = self.address.host
            await loop.create_connection(lambda: connection, host, self.address.port, ssl=context, server_hostname=host)
        else:
            await loop.create_connection(lambda: connection, self.address.host, self.address.port)
        return connection

    async def _connect_unix(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, self.address.host)
            if self._check_peer is not None:
                self._check_peer(connection)
        except BaseException:  # a cancellation too: nobody else knows of it yet, who could close it
            connection.close()
            raise
        return connection


class Pool:
    """Connections of one way. No more than `most` are in use at once; whoever comes then waits for a turn."""

    def __init__(self, connector: Connector, max_connections: int) -> None:
        self.connector = connector
        self._max_connections = max_connections
        self._slots = asyncio.Semaphore(max_connections)
        self._idle: list[AsyncConnection] = []
        self._streams: set[AsyncConnection] = set()
        self._closed = False

    async def exchange(self, data: bytes, seconds: float, *, allow_stale: bool) -> Response:
        """One exchange. Where it `may_be_stale`, one that a kept connection lost before a byte of an answer came is
        made once more on a new one."""
        async with self._slots:
            connection = self._take_idle(IDLE_SECONDS if allow_stale else FRESH_SECONDS)
            if connection is not None:
                if response := await self._try_idle(connection, data, seconds, allow_stale=allow_stale):
                    return response
                # Whatever closed one may have closed them all.
                self._close_idle()
            connection = await self.connector.open(seconds)
            response = await connection.exchange(data, seconds)
            self._return_idle(connection)
            return response

    @contextlib.asynccontextmanager
    async def stream(self, data: bytes, seconds: float) -> AsyncIterator[tuple[Response, AsyncConnection]]:
        """An exchange whose answer may have no end, on a connection of its own."""
        connection = await self.connector.open(seconds)
        self._streams.add(connection)
        try:
            yield await connection.open_stream(data, seconds), connection
        finally:
            self._streams.discard(connection)
            connection.close()

    def close(self) -> None:
        self._closed = True
        self._close_idle()
        for connection in self._streams:
            connection.close()

    async def _try_idle(
        self, connection: AsyncConnection, data: bytes, seconds: float, *, allow_stale: bool
    ) -> Response | None:
        try:
            response = await connection.exchange(data, seconds)
        except Lost:
            if allow_stale and not connection.has_response_data:
                return None
            raise
        self._return_idle(connection)
        return response

    def _take_idle(self, max_idle_seconds: float) -> AsyncConnection | None:
        """The connection that was used last, if that was not too long ago."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle[-1]
            if connection.is_open and now - connection.idle_since < max_idle_seconds:
                return self._idle.pop()
            if connection.is_open and now - connection.idle_since < IDLE_SECONDS:
                return None  # good enough for others
            self._idle.pop().close()
        return None

    def _return_idle(self, connection: AsyncConnection) -> None:
        if not connection.is_open or self._closed:
            connection.close()
            return
        self._idle.append(connection)
        oldest = self._idle[0]
        if (
            len(self._idle) > self._max_connections
            or not oldest.is_open
            or connection.idle_since - oldest.idle_since > IDLE_SECONDS
        ):
            self._idle.pop(0).close()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()
