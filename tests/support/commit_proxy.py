"""A proxy in front of PostgreSQL that cuts a connection during COMMIT.

It reads what the client sends. When it is armed, it forwards everything until COMMIT appears, and then cuts once. The
client receives nothing more, then the end of the connection.

| cut      | what happens to the COMMIT message                                    |
|----------|-----------------------------------------------------------------------|
| before   | dropped; the server sees a client that disconnected                   |
| after    | forwarded; the proxy waits for the server's response before it cuts   |
| at once  | forwarded; the proxy does not wait for the server                     |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CutMoment = Literal["before", "after", "at once"]
COMMIT_WORD = b"COMMIT\0"


@dataclass
class CommitProxy:
    """Connect to `url`. A test must check `cuts`: a test without a cut proves nothing."""

    url: str = ""
    cuts: int = 0
    was_cut: asyncio.Event = field(default_factory=asyncio.Event)
    _upstream: tuple[str, int] = ("", 0)
    _armed: CutMoment | None = None
    _refuses_after_cut: bool = False
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _served: set[asyncio.Task[None]] = field(default_factory=set)

    def arm(self, moment: CutMoment, *, refuse_afterwards: bool = False) -> None:
        self._armed, self._refuses_after_cut = moment, refuse_afterwards

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._handle_connection(reader, writer))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._upstream
        if host.startswith("/"):
            upstream = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            upstream = await asyncio.open_connection(host, port)
        writers = (writer, upstream[1])
        self._open.update(writers)
        response_pump = asyncio.create_task(_pump(upstream[0], writer))
        try:
            await self._forward_requests(reader, upstream, response_pump)
        except ConnectionError:
            pass
        finally:
            response_pump.cancel()
            for writer_to_abort in writers:
                writer_to_abort.transport.abort()
            self._open.difference_update(writers)

    async def _forward_requests(
        self,
        reader: asyncio.StreamReader,
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        response_pump: asyncio.Task[None],
    ) -> None:
        """Forward the client's data until one side disconnects or the armed proxy sees COMMIT."""
        server_reader, server_writer = upstream
        tail = b""
        while data := await reader.read(65_536):
            if self._armed and COMMIT_WORD in tail + data:
                moment, self._armed = self._armed, None
                # From here on the client receives nothing more.
                response_pump.cancel()
                await asyncio.wait([response_pump])
                if moment != "before":
                    server_writer.write(data)
                    await server_writer.drain()
                if moment == "after":
                    await server_reader.readuntil(COMMIT_WORD)
                await self._finish_cut()
                return
            tail = data[-len(COMMIT_WORD) :]
            server_writer.write(data)
            await server_writer.drain()

    async def _finish_cut(self) -> None:
        if self._refuses_after_cut:
            await self.refuse()
        self.cuts += 1
        self.was_cut.set()

    async def refuse(self) -> None:
        """Refuse new connections and cut the open ones, as if the database were unreachable."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def close(self) -> None:
        await self.refuse()
        for task in list(self._served):
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def open_proxy(url: str) -> AsyncIterator[CommitProxy]:
    """Open a proxy on loopback in front of this PostgreSQL. Without TLS, because it must read the messages."""
    parts = conninfo_to_dict(url)
    proxy = CommitProxy(_upstream=(str(parts.get("host", "127.0.0.1")), int(str(parts.get("port", 5432)))))
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy._server = server
    port = server.sockets[0].getsockname()[1]
    proxy.url = conninfo_to_url(
        make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")
    )
    try:
        yield proxy
    finally:
        await proxy.close()


def conninfo_to_url(conninfo: str) -> str:
    """Convert a conninfo string to a URL: stores are opened by URL."""
    parts = conninfo_to_dict(conninfo)
    login = ":".join(str(parts[name]) for name in ("user", "password") if parts.get(name))
    options = "&".join(f"{name}={parts[name]}" for name in ("sslmode", "gssencmode"))
    return f"postgresql://{login}@{parts['host']}:{parts['port']}/{parts['dbname']}?{options}"
