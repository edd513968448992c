"""Sockets, signals and draining, around uvicorn.

Draining answers everything that was accepted. First the streams are told to end, and the listening sockets close, so
that nothing new arrives; each connection that is still open is told `connection: close` with its next answer; a
connection that says nothing for a moment is closed, and so is a stream that could not end, since its peer does not
read; then uvicorn waits for whatever is still being answered, for as long as the grace allows.
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

from quarterdeck.http.connection import Connections

QUIET_SECONDS = 0.3
"""How long a kept-alive connection may still say something after the listening sockets have closed."""


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
            self._connections.watch()
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_drain()
        for server in self.servers:
            server.close()
        if len(self._connections):
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._connections.none_left.wait()
            except TimeoutError:
                # What is still open is idle, or being answered: uvicorn closes the one and waits for the other. For a
                # stream whose peer does not read it would wait until the grace is over.
                self._connections.cut_streams()
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
