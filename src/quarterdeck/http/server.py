"""The server: listening sockets, signals, and draining at shutdown.

Draining answers every accepted request:

1. Streams and long polls end, and the listening sockets close. Every later response has `connection: close`.
2. After `DRAIN_IDLE_SECONDS`, idle connections are closed, and streams whose peer is not reading are aborted.
3. Requests in progress may finish within the grace period.
4. Requests that are still in progress are then cancelled. Their clients get `outcome_unknown`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path

from quarterdeck.http.connection import Connection, Connections, RequestHandler

DRAIN_IDLE_SECONDS = 0.3
"""How long a keep-alive connection may still send a request after the listening sockets have closed."""
CANCEL_SECONDS = 1.0
"""How long cancelled requests have to send their last response."""
BACKLOG = 1024


class Server:
    """Serves until SIGTERM or SIGINT, then drains. A second signal cancels the requests in progress at once."""

    def __init__(self, handle_request: RequestHandler, connections: Connections, grace_seconds: float) -> None:
        self._handle_request = handle_request
        self._connections = connections
        self._grace_seconds = grace_seconds
        self._stop_requested = asyncio.Event()
        self._stop_forced = asyncio.Event()

    async def serve(
        self, sockets: list[socket.socket], on_ready: Callable[[], None], on_drain: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._on_stop_signal)
        try:
            servers = [await self._listen(listener) for listener in sockets]
            self._connections.check_timeouts()
            on_ready()
            await self._stop_requested.wait()
            self._connections.is_draining = True
            on_drain()
            for server in servers:
                server.close()
            await self._drain()
        finally:
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(signal_number)

    async def _listen(self, listener: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()

        is_unix_socket = listener.family == socket.AF_UNIX

        def new_connection() -> Connection:
            return Connection(self._handle_request, self._connections, is_unix_socket=is_unix_socket)

        if is_unix_socket:
            return await loop.create_unix_server(new_connection, sock=listener, backlog=BACKLOG)
        return await loop.create_server(new_connection, sock=listener, backlog=BACKLOG)

    def _on_stop_signal(self) -> None:
        (self._stop_forced if self._stop_requested.is_set() else self._stop_requested).set()

    async def _drain(self) -> None:
        await self._wait_unless_forced(self._connections.all_closed.wait(), DRAIN_IDLE_SECONDS)
        # A connection that is still open is idle, has a request in progress, or has a stream whose peer is not reading.
        self._connections.abort_streams()
        self._connections.close_idle()
        await self._wait_unless_forced(self._connections.all_closed.wait(), self._grace_seconds)
        for task in self._connections.request_tasks:
            task.cancel()
        if self._connections.request_tasks:
            await asyncio.wait(self._connections.request_tasks, timeout=CANCEL_SECONDS)

    async def _wait_unless_forced(self, condition: Coroutine[object, object, object], seconds: float) -> None:
        futures = [asyncio.ensure_future(condition), asyncio.ensure_future(self._stop_forced.wait())]
        await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for future in futures:
            future.cancel()


def listen_tcp(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises OSError with a message for the operator."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
    listener.setblocking(False)
    return listener


def listen_unix(path: Path) -> socket.socket:
    """Open a listening Unix socket that only this user can connect to.

    The caller holds the lock of the data directory, so an existing socket file is stale and is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.parent.stat().st_uid != os.getuid():
        raise OSError(f"{path.parent} belongs to another user. Set XDG_RUNTIME_DIR to a directory that you own.")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def local_url_of(listener: socket.socket) -> str:
    """The URL for clients on this machine: a wildcard address is replaced by the loopback address."""
    host = str(listener.getsockname()[0])
    return url_of(listener).replace(host, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), 1)  # noqa: S104 - looked up, not bound


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
