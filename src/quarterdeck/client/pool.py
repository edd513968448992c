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

from quarterdeck.client.http_async import Wire
from quarterdeck.client.http_types import Address, Answer, Lost, TimedOut, Unreachable, reason_of

IDLE_SECONDS = 60.0
"""Less than the 75 s after which the server closes what is idle."""
FRESH_SECONDS = 1.0
Check = Callable[[socket.socket], None]
"""Raises what speaks against whoever listens at the other end, before anything is sent."""


class Way:
    """How a server is reached."""

    def __init__(self, address: Address, check: Check | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._check = check
        self._tls = tls

    async def open(self, seconds: float) -> Wire:
        """A new connection. Raises `Unreachable` or `TimedOut`, and then nothing was sent."""
        try:
            async with asyncio.timeout(seconds):
                return await self._connect()
        except TimeoutError:
            raise TimedOut(
                "connect_timeout", f"{self.address} did not accept a connection within {seconds:g} s."
            ) from None
        except (OSError, UnicodeError) as wrong:
            raise Unreachable(
                "server_unreachable", f"No server answers at {self.address}: {reason_of(wrong)}."
            ) from wrong

    async def _connect(self) -> Wire:
        loop = asyncio.get_running_loop()
        wire = Wire(self.address)
        if self.address.scheme == "unix":
            await loop.create_unix_connection(lambda: wire, sock=await self._connected(loop))
        elif self.address.scheme == "https":
            context = self._tls or ssl.create_default_context()
            host = self.address.host
            await loop.create_connection(lambda: wire, host, self.address.port, ssl=context, server_hostname=host)
        else:
            await loop.create_connection(lambda: wire, self.address.host, self.address.port)
        return wire

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, self.address.host)
            if self._check is not None:
                self._check(connection)
        except BaseException:  # a cancellation too: nobody else knows of it yet, who could close it
            connection.close()
            raise
        return connection


class Pool:
    """Connections of one way. No more than `most` are in use at once; whoever comes then waits for a turn."""

    def __init__(self, way: Way, most: int) -> None:
        self.way = way
        self._most = most
        self._turns = asyncio.Semaphore(most)
        self._idle: list[Wire] = []
        self._streams: set[Wire] = set()
        self._closed = False

    async def exchange(self, data: bytes, seconds: float, *, may_be_stale: bool) -> Answer:
        """One exchange. Where it `may_be_stale`, one that a kept connection lost before a byte of an answer came is
        made once more on a new one."""
        async with self._turns:
            wire = self._kept(IDLE_SECONDS if may_be_stale else FRESH_SECONDS)
            if wire is not None:
                if answer := await self._try_kept(wire, data, seconds, may_be_stale=may_be_stale):
                    return answer
                # Whatever closed one may have closed them all.
                self._drop_idle()
            wire = await self.way.open(seconds)
            answer = await wire.exchange(data, seconds)
            self._keep(wire)
            return answer

    @contextlib.asynccontextmanager
    async def stream(self, data: bytes, seconds: float) -> AsyncIterator[tuple[Answer, Wire]]:
        """An exchange whose answer may have no end, on a connection of its own."""
        wire = await self.way.open(seconds)
        self._streams.add(wire)
        try:
            yield await wire.begin(data, seconds), wire
        finally:
            self._streams.discard(wire)
            wire.close()

    def close(self) -> None:
        self._closed = True
        self._drop_idle()
        for wire in self._streams:
            wire.close()

    async def _try_kept(self, wire: Wire, data: bytes, seconds: float, *, may_be_stale: bool) -> Answer | None:
        try:
            answer = await wire.exchange(data, seconds)
        except Lost:
            if may_be_stale and not wire.has_heard:
                return None
            raise
        self._keep(wire)
        return answer

    def _kept(self, seconds: float) -> Wire | None:
        """The connection that was used last, if that was not too long ago."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            wire = self._idle[-1]
            if wire.is_open and now - wire.idle_since < seconds:
                return self._idle.pop()
            if wire.is_open and now - wire.idle_since < IDLE_SECONDS:
                return None  # good enough for others
            self._idle.pop().close()
        return None

    def _keep(self, wire: Wire) -> None:
        if not wire.is_open or self._closed:
            wire.close()
            return
        self._idle.append(wire)
        oldest = self._idle[0]
        if len(self._idle) > self._most or not oldest.is_open or wire.idle_since - oldest.idle_since > IDLE_SECONDS:
            self._idle.pop(0).close()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()
