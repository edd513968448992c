"""Errands: what goes on in tasks that nobody waits for, and how such a task says what came of it.

A task that nobody waits for must not fail unheard, so its failure is logged; nor may it be forgotten, so it is kept
until it has ended. Whoever stops gives what is under way its time, and cuts the rest: whatever an errand has begun must
be found again by somebody who knows nothing of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from logging import Logger
from typing import TypeVar

from quarterdeck.core.errors import Unavailable
from quarterdeck.core.retry import Policy, backoff

REPORT_RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=2_000)
T = TypeVar("T")


class Background:
    def __init__(self, log: Logger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def stop(self, grace_seconds: float) -> int:
        """Returns when all have ended, or have had so many seconds: how many were cut."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, grace_seconds))
        cancelled = [*self._tasks]
        for task in cancelled:
            task.cancel()
        if cancelled:
            await asyncio.wait(cancelled)
        return len(cancelled)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._log.error("%s failed", task.get_name(), exc_info=error)


async def retry_while_unavailable(
    call: Callable[[], Awaitable[T]], deadline: float, policy: Policy = REPORT_RETRY
) -> T:
    """Says it again for as long as the database is away, but not after an instant of the loop's clock: then that is
    raised, as every other refusal is at once."""
    attempts = 0
    while True:
        attempts += 1
        try:
            return await call()
        except Unavailable:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(backoff(policy, attempt=attempts, jitter=random.random()) / 1000)
