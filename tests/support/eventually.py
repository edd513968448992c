"""The bounded wait, for conditions without an event: a process has ended, a port accepts connections.

Where there is an event, wait for the event. This is the only file of the tests that may sleep. It polls until the
condition holds, and fails with a description when the limit is reached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

LIMIT = 20.0
"""Seconds. Long enough for a loaded machine, short enough to look like a failure and not like a hang."""
PAUSE_MIN, PAUSE_MAX = 0.01, 0.05
"""Seconds between two checks. A check costs, often a new connection, so the pause grows with the time waited."""


async def eventually(condition: Callable[[], Awaitable[bool]], description: str, limit: float = LIMIT) -> None:
    """Poll until the condition holds. `description` says what must become true."""
    started = time.monotonic()
    while not await condition():
        pause = _next_pause(time.monotonic() - started, description, limit)
        await asyncio.sleep(pause)


def eventually_sync(condition: Callable[[], bool], description: str, limit: float = LIMIT) -> None:
    """The same outside an event loop, for fixtures that start and stop servers."""
    started = time.monotonic()
    while not condition():
        time.sleep(_next_pause(time.monotonic() - started, description, limit))


def _next_pause(waited: float, description: str, limit: float) -> float:
    if waited > limit:
        raise AssertionError(f"not true within {limit} s: {description}")
    return min(max(PAUSE_MIN, waited / 20), PAUSE_MAX)
