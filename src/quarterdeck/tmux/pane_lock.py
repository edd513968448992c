"""The typing lock of a pane: one process types at a time. Servers and monitors on the same host share it.

A line is typed as text and, a moment later, Enter. If two processes typed at once, their lines would be mixed. The lock
is an flock on a file next to the tmux server's socket, in a directory that only this user can access. The kernel
releases it when its holder is killed. Typing and waiting both have a timeout, so a hung holder does not block the other
processes forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from collections.abc import AsyncIterator

from quarterdeck.tmux.errors import TmuxError


@contextlib.asynccontextmanager
async def lock_pane(socket: str, pane_id: str, timeout_seconds: float) -> AsyncIterator[None]:
    """Hold the lock of a pane during the `with` block. Raises `TmuxError` if the lock is not free in time."""
    path = f"{socket}.{pane_id.removeprefix('%')}.typing"
    try:
        lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise TmuxError(f"Cannot create the pane lock {path}: {error.strerror}.") from error
    loop = asyncio.get_running_loop()
    locked: asyncio.Future[None] = loop.create_future()

    def acquire() -> None:
        # Runs in its own thread, so that waiting for one pane does not block typing into another.
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
            loop.call_soon_threadsafe(_on_locked, locked, lock_fd)

    threading.Thread(target=acquire, name=f"pane lock {pane_id}", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_seconds):
            await locked
    except (asyncio.CancelledError, TimeoutError) as error:
        if not locked.cancelled():
            os.close(lock_fd)  # the lock was acquired at the same time, and nothing else would release it
        if isinstance(error, TimeoutError):
            raise TmuxError(f"Another process has been typing into {pane_id} for {timeout_seconds:g} s.") from None
        raise
    try:
        yield
    finally:
        os.close(lock_fd)


def _on_locked(locked: asyncio.Future[None], lock_fd: int) -> None:
    if locked.done():
        os.close(lock_fd)  # the waiter has timed out or was canceled
    else:
        locked.set_result(None)
