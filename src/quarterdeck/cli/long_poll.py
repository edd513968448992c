"""Repeats long polls, for commands that wait for new items. Polling continues after the server restarts."""

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
"""How long the server waits for new items before it returns an empty response."""
_RETRY_SECONDS = 2.0


def repeat_long_poll(
    context: Context, poll_once: Callable[[ApiClient], bool], *, deadline: float | None = None
) -> None:
    """Call `poll_once` until it returns True. Each call may wait up to `WAIT_MS`.

    Retries while the server cannot be reached or is unavailable, but not after `deadline` on the monotonic clock.
    """
    server: ApiClient | None = context.server()
    while True:
        try:
            if server is None:
                server = context.find_running_server()
            if server is None:
                raise Unreachable("server_unreachable", "The server is not responding.")
            # The response may take the requested wait plus the usual time.
            timeout_seconds = context.server_location.timeout or DEFAULT_TIMEOUT_SECONDS
            server.connection.timeout_seconds = timeout_seconds + WAIT_MS / 1000
            is_done = poll_once(server)
            _require_stdout_reader()
        except (Unreachable, Lost, TimedOut, Unavailable) as fault:
            if deadline is not None and time.monotonic() + _RETRY_SECONDS > deadline:
                raise
            context.note(f"{fault.detail} Retrying.")
            time.sleep(_RETRY_SECONDS)
            server = None
        else:
            if is_done:
                return


def _require_stdout_reader() -> None:
    """Raise BrokenPipeError if the reader has closed stdout. A write would also fail, but there may be no output."""
    if sys.platform == "win32":
        return  # a write will fail
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        raise BrokenPipeError
