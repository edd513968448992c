"""A pool of connections to one server, for the asyncio client.

The most recently used connection is reused first. Later requests close connections that have been idle for too long. A
request that must not be repeated is not sent on a connection that the server may have closed: it gets a connection that
was used within the last second, or a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable

from quarterdeck.client.http_async import AsyncConnection
from quarterdeck.client.http_types import Address, Lost, Response, connect_fault

IDLE_SECONDS = 60.0
"""How long an idle connection may be reused. Less than the 75 s after which the server closes it."""
FRESH_SECONDS = 1.0
"""A connection that was used this recently is assumed to be open."""
PeerCheck = Callable[[socket.socket], None]
"""Raises if the listening process is not trusted. Called before anything is sent."""


class Connector:
    """Opens connections to one server."""

    def __init__(
        self, address: Address, check_peer: PeerCheck | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self._check_peer = check_peer
        self._tls = tls

    async def open(self, timeout_seconds: float) -> AsyncConnection:
        """Open a new connection. If it raises `Unreachable` or `TimedOut`, nothing was sent."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._connect()
        except (OSError, UnicodeError) as error:
            raise connect_fault(self.address, error, timeout_seconds) from error

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
        except BaseException:  # including a cancellation: nothing else holds the socket yet, so close it here
            connection.close()
            raise
        return connection


class Pool:
    """Connections to one server. At most `max_connections` exchanges run at once; further ones wait.

    Each stream has its own connection, which does not count against the limit.
    """

    def __init__(self, connector: Connector, max_connections: int) -> None:
        self.connector = connector
        self._max_connections = max_connections
        self._slots = asyncio.Semaphore(max_connections)
        self._idle_connections: list[AsyncConnection] = []
        self._stream_connections: set[AsyncConnection] = set()
        self._is_closed = False

    async def exchange(self, data: bytes, timeout_seconds: float, *, allow_repeat: bool) -> Response:
        """Send a request and read its response.

        With `allow_repeat`, the connection may have been idle for up to `IDLE_SECONDS` instead of `FRESH_SECONDS`. If
        it is lost before a byte of the response arrives, the exchange is repeated once on a new connection.
        """
        async with self._slots:
            connection = self._take_idle(IDLE_SECONDS if allow_repeat else FRESH_SECONDS)
            if connection is not None:
                if response := await self._try_idle(connection, data, timeout_seconds, allow_repeat=allow_repeat):
                    return response
                # Whatever closed this connection may have closed all idle connections.
                self._close_idle()
            connection = await self.connector.open(timeout_seconds)
            response = await connection.exchange(data, timeout_seconds)
            self._return_idle(connection)
            return response

    @contextlib.asynccontextmanager
    async def stream(self, data: bytes, timeout_seconds: float) -> AsyncIterator[tuple[Response, AsyncConnection]]:
        """Send a request whose response may be a stream, on its own connection. Closes the connection at the end."""
        connection = await self.connector.open(timeout_seconds)
        self._stream_connections.add(connection)
        try:
            yield await connection.open_stream(data, timeout_seconds), connection
        finally:
            self._stream_connections.discard(connection)
            connection.close()

    def close(self) -> None:
        self._is_closed = True
        self._close_idle()
        for connection in self._stream_connections:
            connection.close()

    async def _try_idle(
        self, connection: AsyncConnection, data: bytes, timeout_seconds: float, *, allow_repeat: bool
    ) -> Response | None:
        try:
            response = await connection.exchange(data, timeout_seconds)
        except Lost:
            if allow_repeat and not connection.has_response_data:
                return None
            raise
        self._return_idle(connection)
        return response

    def _take_idle(self, max_idle_seconds: float) -> AsyncConnection | None:
        """Take the most recently used connection, if it has not been idle for too long."""
        now = asyncio.get_running_loop().time()
        while self._idle_connections:
            connection = self._idle_connections[-1]
            if connection.is_open and now - connection.idle_since < max_idle_seconds:
                return self._idle_connections.pop()
            if connection.is_open and now - connection.idle_since < IDLE_SECONDS:
                return None  # too old for this request, but other requests may use it
            self._idle_connections.pop().close()
        return None

    def _return_idle(self, connection: AsyncConnection) -> None:
        if not connection.is_open or self._is_closed:
            connection.close()
            return
        self._idle_connections.append(connection)
        oldest = self._idle_connections[0]
        if (
            len(self._idle_connections) > self._max_connections
            or not oldest.is_open
            or connection.idle_since - oldest.idle_since > IDLE_SECONDS
        ):
            self._idle_connections.pop(0).close()

    def _close_idle(self) -> None:
        while self._idle_connections:
            self._idle_connections.pop().close()
