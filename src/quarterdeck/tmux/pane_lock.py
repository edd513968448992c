"""One at a time types into a pane, whoever they are: the server, the monitor, a replica on the same host.

A line is text and, a moment later, Enter: two who type at once would make one line of theirs. The lock is a file beside
the tmux server's socket, in a directory of this user's alone, and the kernel gives it back when its holder is killed.
Whoever types is bounded in time, and so is whoever waits: one who stands still with its turn taken holds up nobody for
ever.
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
async def lock_pane(socket: str, pane_id: str, seconds: float) -> AsyncIterator[None]:
    """Entered when nobody else types into this pane; raises if somebody does for so many seconds."""
    name = f"{socket}.{pane_id.removeprefix('%')}.typing"
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise TmuxError(f"Nobody can type by turns beside {socket}: {error.strerror}.") from error
    loop = asyncio.get_running_loop()
    locked: asyncio.Future[None] = loop.create_future()

    def acquire() -> None:
        # In a thread of its own: those who wait for one pane must not keep anybody from another.
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(_on_locked, locked, file)

    threading.Thread(target=acquire, name=f"turn {pane_id}", daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            await locked
    except (asyncio.CancelledError, TimeoutError) as error:
        if not locked.cancelled():
            os.close(file)  # its turn had come in the same moment, and nobody else would give it back
        if isinstance(error, TimeoutError):
            raise TmuxError(f"Somebody else has been typing into {pane_id} for {seconds:g} s.") from None
        raise
    try:
        yield
    finally:
        os.close(file)


def _on_locked(locked: asyncio.Future[None], file: int) -> None:
    if locked.done():
        os.close(file)  # whoever waited has gone
    else:
        locked.set_result(None)
