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
PAUSE = 0.01


async def eventually(condition: Callable[[], Awaitable[bool]], what: str, limit: float = LIMIT) -> None:
    """Look until the condition holds. `what` completes the sentence: "it never came to be that …"."""
    deadline = time.monotonic() + limit
    while not await condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"within {limit} s it never came to be that {what}")
        await asyncio.sleep(PAUSE)


def eventually_sync(condition: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
    """The same for code outside a loop: the fixtures that start and stop servers."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"within {limit} s it never came to be that {what}")
        time.sleep(PAUSE)
