"""Sweeps: bounded passes that repeat.

A room says what one pass does (`run_once`, which moves at most `batch` rows and says how many); the runner adds the
rest: a first delay that differs by sweep and process, so that replicas do not all sweep at once; a time limit;
repetition while passes come back full; counting; and a wake-up, by which a test or an operator has a pass made now
and learns when it is done. A pass that fails is logged, counted, and tried again at its next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger("quarterdeck.sweeps")
PASSES_MAX = 100
"""Full passes in a row before other sweeps and requests get a turn."""


@dataclass(frozen=True, slots=True)
class Sweep:
    name: str
    every_ms: int
    batch: int
    run_once: Callable[[int], Awaitable[int]]
    """Makes one pass over at most this many rows; how many it moved."""
    timeout_seconds: float = 30.0


class SweepObserver(Protocol):
    def on_swept(self, sweep: str, changed: int) -> None: ...
    def on_failed(self, sweep: str) -> None: ...


class SweepRunner:
    def __init__(self, sweeps: Sequence[Sweep], observer: SweepObserver | None = None) -> None:
        self._sweeps = {sweep.name: sweep for sweep in sweeps}
        self._observers = [] if observer is None else [observer]
        self._tasks: list[asyncio.Task[None]] = []
        self._locks = {name: asyncio.Lock() for name in self._sweeps}

    @property
    def sweeps(self) -> Sequence[Sweep]:
        return [*self._sweeps.values()]

    def add_observer(self, observer: SweepObserver) -> None:
        """Has one more hear of every pass."""
        self._observers.append(observer)

    def start(self, only: Collection[str] | None = None) -> None:
        """Begins to repeat every sweep, or those named."""
        self._tasks = [
            asyncio.create_task(self._repeat(sweep), name=f"sweep {sweep.name}")
            for sweep in self._sweeps.values()
            if only is None or sweep.name in only
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def run_now(self, name: str) -> int:
        """Sweeps until a pass comes back less than full; how many rows moved. Never beside another run of the same."""
        sweep = self._sweeps[name]
        changed = 0
        async with self._locks[name]:
            for _ in range(PASSES_MAX):
                async with asyncio.timeout(sweep.timeout_seconds):
                    count = await sweep.run_once(sweep.batch)
                changed += count
                if count < sweep.batch:
                    break
        for observer in self._observers:
            observer.on_swept(name, changed)
        return changed

    async def _repeat(self, sweep: Sweep) -> None:
        pause = sweep.every_ms / 1000 * random.random()
        while True:
            await asyncio.sleep(pause)
            try:
                await self.run_now(sweep.name)
            except Exception:  # a pass that fails must not end the sweep; the next turn tries again
                log.exception("the sweep %s failed; it is tried again in %d ms", sweep.name, sweep.every_ms)
                for observer in self._observers:
                    observer.on_failed(sweep.name)
            pause = sweep.every_ms / 1000
