"""Long polls, one after the other: for what is told as it comes, and outlives the server's restarts."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable

from quarterdeck.cli.context import Context
from quarterdeck.client.api import ApiClient
from quarterdeck.client.discovery import DEFAULT_TIMEOUT_SECONDS
from quarterdeck.client.http_types import Lost, TimedOut, Unreachable
from quarterdeck.core.errors import Unavailable

WAIT_MS = 20_000
"""How long the server waits for something before it says that there is nothing."""
_RETRY_SECONDS = 2.0


def repeat_long_poll(
    context: Context, poll_once: Callable[[ApiClient], bool], *, deadline: float | None = None
) -> None:
    """Asks until `step`, which may wait for `WAIT_MS`, says that it is enough. While no server answers it is asked
    again, but not beyond `end`."""
    server: ApiClient | None = context.server()
    while True:
        try:
            if server is None:
                server = context.find_running_server()
            if server is None:
                raise Unreachable("server_unreachable", "No server answers.")
            # The answer may take as long as it is asked to wait, and then as long as any answer.
            server.connection.timeout = (context.server_location.timeout or DEFAULT_TIMEOUT_SECONDS) + WAIT_MS / 1000
            is_done = poll_once(server)
            _require_stdout_reader()
        except (Unreachable, Lost, TimedOut, Unavailable) as fault:
            if deadline is not None and time.monotonic() + _RETRY_SECONDS > deadline:
                raise
            context.note(f"{fault.detail} Trying again.")
            time.sleep(_RETRY_SECONDS)
            server = None
        else:
            if is_done:
                return


def _require_stdout_reader() -> None:
    """What says nothing for hours would never find out by writing that nobody reads it any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        raise BrokenPipeError
