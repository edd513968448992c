"""Background asyncio tasks that no caller awaits.

Each task is referenced until it has ended, so that it is not garbage collected. The work of a task must be recoverable
after a cancellation.

| class            | its tasks               | a failure           | `stop`                                 |
|------------------|-------------------------|---------------------|----------------------------------------|
| `Background`     | any number, which end   | is logged           | waits for a limited time, then cancels |
| `BackgroundLoop` | one, which runs forever | is logged           | cancels at once                        |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from quarterdeck.core.errors import Unavailable
from quarterdeck.core.retry import Policy, backoff

log = logging.getLogger("quarterdeck.background")
UNAVAILABLE_RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=2_000)
T = TypeVar("T")


class Background:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def stop(self, grace_seconds: float) -> int:
        """Wait until all tasks have ended or the time has passed. Then cancel those still running; return how many."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, grace_seconds))
        remaining_tasks = [*self._tasks]
        for task in remaining_tasks:
            task.cancel()
        if remaining_tasks:
            await asyncio.wait(remaining_tasks)
        return len(remaining_tasks)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._log.error("%s failed", task.get_name(), exc_info=error)


class BackgroundLoop(ABC):
    def __init__(self, name: str) -> None:
        self.name = name
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _run(self) -> None:
        """Run until canceled. Must log and retry failures, because the end of the task would go unnoticed."""

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """Cancel the task and wait until it has ended. A failure is logged, so that the shutdown continues."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled() and (error := self._task.exception()):
                log.error("%s failed", self.name, exc_info=error)


async def wait_at_most(seconds: float | None, awaitable: Awaitable[object]) -> None:
    """Await something until it has finished or the time has passed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await awaitable


async def retry_while_unavailable(
    call: Callable[[], Awaitable[T]], deadline: float, policy: Policy = UNAVAILABLE_RETRY
) -> T:
    """Retry while `call` raises `Unavailable`, until `deadline` on the event loop's clock."""
    attempts = 0
    while True:
        attempts += 1
        try:
            return await call()
        except Unavailable:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(backoff(policy, attempt=attempts, jitter=random.random()) / 1000)
