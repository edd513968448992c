"""Sweeps: bounded background passes that are repeated.

A component defines one pass (`run_once`, which changes at most `batch` rows and returns how many). The runner adds a
random first delay, so that replicas do not all sweep at once; a time limit; repetition while passes are full; counts;
and `run_now`, with which a test or an operator runs a sweep and waits for it. A failed pass is logged, counted and
retried after its interval.
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
"""Maximum full passes in a row, so that other sweeps and requests run in between."""


@dataclass(frozen=True, slots=True)
class Sweep:
    name: str
    every_ms: int
    batch: int
    run_once: Callable[[int], Awaitable[int]]
    """Runs one pass over at most this many rows. Returns how many it changed."""
    timeout_seconds: float = 30.0


class SweepObserver(Protocol):
    def on_swept(self, sweep: str, changed: int) -> None: ...
    def on_failed(self, sweep: str) -> None: ...


class SweepRunner:
    def __init__(self, sweeps: Sequence[Sweep], observer: SweepObserver | None = None) -> None:
        self._sweeps = {sweep.name: sweep for sweep in sweeps}
        if len(self._sweeps) != len(sweeps):
            names = sorted(sweep.name for sweep in sweeps)
            raise ValueError(f"Each sweep needs a name of its own: {', '.join(names)}.")
        self._observers = [] if observer is None else [observer]
        self._tasks: list[asyncio.Task[None]] = []
        self._locks = {name: asyncio.Lock() for name in self._sweeps}

    @property
    def sweeps(self) -> Sequence[Sweep]:
        return [*self._sweeps.values()]

    def add_observer(self, observer: SweepObserver) -> None:
        """Notify one more observer of every pass."""
        self._observers.append(observer)

    def start(self, only: Collection[str] | None = None) -> None:
        """Start repeating all sweeps, or only those named in `only`."""
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
        """Run passes until one is not full. Return how many rows they changed. Runs of one sweep never overlap."""
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
            except Exception:  # a failed pass must not end the sweep; it is retried after the interval
                log.exception("sweep %s failed; retried in %d ms", sweep.name, sweep.every_ms)
                for observer in self._observers:
                    observer.on_failed(sweep.name)
            pause = sweep.every_ms / 1000
