"""Sockets, signals and draining, around uvicorn.

Draining answers everything that was accepted. First the listening sockets close, so that nothing new arrives; each
connection that is still open is told `connection: close` with its next answer; a connection that says nothing for a
moment is closed; then uvicorn waits for whatever is still being answered, for as long as the grace allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quarterdeck.core.errors import Invalid
from quarterdeck.http import problems

QUIET_SECONDS = 0.3
"""How long a kept-alive connection may still say something after the listening sockets have closed."""


def _not_http() -> bytes:
    """What a peer is told whose bytes are not HTTP: it never becomes a request, but hears of it in the usual form."""
    problem = Invalid("invalid_http", "This is not a well-formed HTTP/1.1 request; the connection is closed.")
    content = problems.body(problem, "")
    head = [b"HTTP/1.1 400 Bad Request", b"content-length: %d" % len(content), b"connection: close"]
    head += [name + b": " + value for name, value in problems.headers(problem)]
    return b"\r\n".join([*head, b"", content])


NOT_HTTP = _not_http()


class Connections:
    """Knows when the last connection has gone."""

    def __init__(self) -> None:
        self.open = 0
        self.none_left = asyncio.Event()

    def opened(self) -> None:
        self.open += 1
        self.none_left.clear()

    def closed(self) -> None:
        self.open -= 1
        if self.open == 0:
            self.none_left.set()


class GatheredTransport:
    """Sends what is written in one turn of the loop with one system call.

    uvicorn writes an answer's head and its body apart, and the second call costs a quarter of a small request.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._soon = loop.call_soon
        self._parts: list[bytes] = []
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_protocol = transport.set_protocol

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))


def protocol_for(connections: Connections) -> type[HttpToolsProtocol]:
    class CountedProtocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            connections.opened()
            super().connection_made(GatheredTransport(transport, self.loop))  # type: ignore[arg-type]

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            connections.closed()

        def send_400_response(self, msg: str) -> None:
            self.transport.write(NOT_HTTP)
            self.transport.close()

    return CountedProtocol


class Server(uvicorn.Server):
    """uvicorn's server, with our draining before its own."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        on_ready: Callable[[], None],
        on_drain: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._on_ready = on_ready
        self._on_drain = on_drain

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Both signals drain; a second one of either does not wait. uvicorn's own version raises them again at the
        end, which would kill the process before it has closed its database."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _told_to_stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_drain()
        for server in self.servers:
            server.close()
        if self._connections.open:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._connections.none_left.wait()
            except TimeoutError:
                pass  # what is still open is idle, or being answered: uvicorn closes the one and waits for the other
        await super().shutdown(sockets)


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening socket; OSError says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise OSError(f"The server cannot listen on {host}, port {port}: {error.strerror}.") from error
    listening.setblocking(False)
    return listening


def listen_unix(path: Path) -> socket.socket:
    """A listening unix socket, for this user alone. The caller holds the directory's lock, so an old one is stale."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.parent.stat().st_uid != os.getuid():
        raise OSError(
            f"{path.parent} belongs to another user; set XDG_RUNTIME_DIR to a directory of your own."
        )
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    path.chmod(0o600)
    listening.listen(1024)
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
