"""The bounded wait, for conditions that announce themselves by no event: a process that is gone, a port that answers.

Where there is an event, wait for the event. This is the only file of the tests that may sleep, and it never sleeps
for the length of a promise: it looks again until the condition holds, and fails with a sentence when it never does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

LIMIT = 20.0
"""Seconds. Long enough for a loaded machine, short enough to be read as a failure and not as a hang."""
PAUSE_MIN, PAUSE_MAX = 0.01, 0.05
"""To look is work, often a connection of its own: whoever has waited for long looks less often, and is hardly later."""


async def eventually(condition: Callable[[], Awaitable[bool]], description: str, limit: float = LIMIT) -> None:
    """Look until the condition holds. `what` completes the sentence: "it never came to be that …"."""
    started = time.monotonic()
    while not await condition():
        pause = _next_pause(time.monotonic() - started, description, limit)
        await asyncio.sleep(pause)


def eventually_sync(condition: Callable[[], bool], description: str, limit: float = LIMIT) -> None:
    """The same for code outside a loop: the fixtures that start and stop servers."""
    started = time.monotonic()
    while not condition():
        time.sleep(_next_pause(time.monotonic() - started, description, limit))


def _next_pause(waited: float, description: str, limit: float) -> float:
    if waited > limit:
        raise AssertionError(f"within {limit} s it never came to be that {description}")
    return min(max(PAUSE_MIN, waited / 20), PAUSE_MAX)
