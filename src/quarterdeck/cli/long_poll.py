"""Long polls, one after the other: for what is told as it comes, and outlives the server's restarts."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable

from quarterdeck.cli.context import Context
from quarterdeck.client.api import Server
from quarterdeck.client.discovery import TIMEOUT
from quarterdeck.client.http_types import Lost, TimedOut, Unreachable
from quarterdeck.core.errors import Unavailable

WAIT_MS = 20_000
"""How long the server waits for something before it says that there is nothing."""
_PAUSE = 2.0


def trail(context: Context, step: Callable[[Server], bool], *, end: float | None = None) -> None:
    """Asks until `step`, which may wait for `WAIT_MS`, says that it is enough. While no server answers it is asked
    again, but not beyond `end`."""
    server: Server | None = context.server()
    while True:
        try:
            if server is None:
                server = context.again()
            if server is None:
                raise Unreachable("server_unreachable", "No server answers.")
            # The answer may take as long as it is asked to wait, and then as long as any answer.
            server.connection.timeout = (context.where.timeout or TIMEOUT) + WAIT_MS / 1000
            enough = step(server)
            _require_reader()
        except (Unreachable, Lost, TimedOut, Unavailable) as fault:
            if end is not None and time.monotonic() + _PAUSE > end:
                raise
            context.note(f"{fault.detail} Trying again.")
            time.sleep(_PAUSE)
            server = None
        else:
            if enough:
                return


def _require_reader() -> None:
    """What says nothing for hours would never find out by writing that nobody reads it any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(found & (select.POLLERR | select.POLLHUP) for _, found in poll.poll(0)):
        raise BrokenPipeError
