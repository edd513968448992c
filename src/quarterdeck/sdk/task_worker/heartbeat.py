"""The heartbeat of a task worker: one for the whole agent, as often as the server wants it.

It names every task that is held; the answer says which of them are not wanted any more. A server that is away is told
as soon as it is back; until then what is held goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import sys
import time
from collections.abc import Awaitable, Callable

from quarterdeck.sdk.agents import Agents
from quarterdeck.sdk.errors import Fault, NotFound
from quarterdeck.sdk.task_worker.in_flight import Holdings

log = logging.getLogger("quarterdeck.sdk.invocation_worker")
RETRY_SECONDS = 1.0
NAMED_MAX = 1_000
"""Tasks that one heartbeat may name."""


class Beater:
    def __init__(self, agents: Agents, holdings: Holdings, agent_id: str) -> None:
        self._agents = agents
        self._holdings = holdings
        self._agent_id = agent_id
        self._now = asyncio.Event()
        self._usage = _Usage()

    async def run(self, seconds: float, register: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled, or until the server refuses for good; first after so many seconds."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._now.wait()
            self._now.clear()
            try:
                seconds = await self.beat()
            except Fault as fault:
                log.warning("the heartbeat of %s is not heard now: %s", self._agent_id, fault.detail)
                seconds = min(seconds, RETRY_SECONDS)
            except NotFound as problem:
                log.warning("%s Registering it again.", problem.detail)
                await register()

    def hurry(self) -> None:
        """The next is due now."""
        self._now.set()

    async def beat(self) -> float:
        """One heartbeat, now; in how many seconds the server wants the next."""
        memory_mb, cpu_percent = self._usage.now()
        beaten = await self._agents.heartbeat(
            self._agent_id, task_ids=self._holdings.task_ids[:NAMED_MAX], memory_mb=memory_mb, cpu_percent=cpu_percent
        )
        self._holdings.cancel(beaten.cancel, "canceled")
        self._holdings.cancel(beaten.pause, "paused")
        for warning in beaten.warnings:
            log.warning("%s (%s): %s", self._agent_id, warning.task_id or warning.code, warning.detail)
        return beaten.next


class _Usage:
    """What this process uses of its machine."""

    def __init__(self) -> None:
        self._at, self._cpu = time.monotonic(), time.process_time()

    def now(self) -> tuple[float, float]:
        """Megabytes at most so far; percent of one core since the last time."""
        at, cpu = time.monotonic(), time.process_time()
        percent = 100 * (cpu - self._cpu) / max(at - self._at, 1e-3)
        self._at, self._cpu = at, cpu
        # macOS counts bytes here, others kibibytes.
        unit = 1024 * 1024 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, percent
