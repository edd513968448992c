"""Sockets, signals and draining.

Draining answers everything that was accepted. First the streams are told to end, and the listening sockets close, so
that nothing new arrives; each connection that is still open is told `connection: close` with its next answer; a
connection that says nothing for a moment is closed, and so is a stream that could not end, since its peer does not
read; then whatever is still being answered is waited for, as long as the grace allows. What is not done then is
cancelled, and its caller told that nobody knows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path

from quarterdeck.http.connection import Answer, Connection, Connections

QUIET_SECONDS = 0.3
"""How long a kept-alive connection may still say something after the listening sockets have closed."""
LAST_SECONDS = 1.0
"""How long those whose answer was cancelled may take to hear so."""
BACKLOG = 1024


class Server:
    """Answers on some sockets, until a signal comes. A second signal does not wait for anybody."""

    def __init__(self, answer: Answer, connections: Connections, grace_seconds: float) -> None:
        self._answer = answer
        self._connections = connections
        self._grace_seconds = grace_seconds
        self._stops = asyncio.Event()
        self._hurries = asyncio.Event()

    async def serve(
        self, sockets: list[socket.socket], on_ready: Callable[[], None], on_drain: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        try:
            servers = [await self._listen(each) for each in sockets]
            self._connections.watch()
            on_ready()
            await self._stops.wait()
            self._connections.says_goodbye = True
            on_drain()
            for server in servers:
                server.close()
            await self._drain()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _listen(self, listening: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()

        is_local = listening.family == socket.AF_UNIX

        def connection() -> Connection:
            return Connection(self._answer, self._connections, is_on_socket=is_local)

        if is_local:
            return await loop.create_unix_server(connection, sock=listening, backlog=BACKLOG)
        return await loop.create_server(connection, sock=listening, backlog=BACKLOG)

    def _told_to_stop(self) -> None:
        (self._hurries if self._stops.is_set() else self._stops).set()

    async def _drain(self) -> None:
        await self._unless_hurried(self._connections.none_left.wait(), QUIET_SECONDS)
        # What is still open is idle, or being answered, or a stream whose peer does not read.
        self._connections.cut_streams()
        self._connections.close_unasked()
        await self._unless_hurried(self._connections.none_left.wait(), self._grace_seconds)
        for task in self._connections.answering:
            task.cancel()
        if self._connections.answering:
            await asyncio.wait(self._connections.answering, timeout=LAST_SECONDS)

    async def _unless_hurried(self, wanted: Coroutine[object, object, object], seconds: float) -> None:
        waits = [asyncio.ensure_future(wanted), asyncio.ensure_future(self._hurries.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()


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
        raise OSError(f"{path.parent} belongs to another user; set XDG_RUNTIME_DIR to a directory of your own.")
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    path.chmod(0o600)
    listening.listen(1024)
    listening.setblocking(False)
    return listening


def local_url_of(listening: socket.socket) -> str:
    """The same for somebody on this machine: what listens everywhere is reached by the loopback."""
    host = str(listening.getsockname()[0])
    return url_of(listening).replace(host, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), 1)  # noqa: S104 - looked up, not bound


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
