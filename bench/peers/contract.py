"""The interface between the driver and the module of each queue.

This module imports only the standard library, because it runs in the environment of every peer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import NoReturn, Protocol, TypeVar

T = TypeVar("T")
WARM_UP_JOB = "warm"
"""Jobs with this name are not counted."""


class JobProducer(Protocol):
    """Creates jobs. A payload is the job's name, a space, and padding to 200 bytes."""

    async def enqueue_one(self, payload: str) -> None:
        """Returns when the job is durable."""
        ...

    async def enqueue_many(self, payloads: list[str]) -> None:
        """Enqueues all in one call. Raises `NotImplementedError` if the queue has no bulk call."""
        ...


class Peer(Protocol):
    def run(self, coroutine: Coroutine[None, None, T]) -> T:
        """Run the coroutine on the fastest event loop for this queue."""
        ...

    async def install(self, url: str) -> None: ...

    def client(self, url: str) -> AbstractAsyncContextManager[JobProducer]: ...

    def work(self, url: str, count: int) -> None:
        """Print `ready`, work until `count` jobs have started, and print their start times."""
        ...


class StartRecorder:
    """Records the start of each job, and calls `on_complete` when all expected jobs have started.

    Times are of the monotonic clock, which all processes of a machine share.
    """

    def __init__(self, expected: int, on_complete: Callable[[], object]) -> None:
        self._expected = expected
        self._on_complete = on_complete
        self._started_at: dict[str, float] = {}

    def report_ready(self) -> None:
        print(json.dumps({"ready": time.monotonic()}), flush=True)

    def record(self, payload: str) -> None:
        name = payload.partition(" ")[0]
        if name != WARM_UP_JOB:
            self._started_at[name] = time.monotonic()
            if len(self._started_at) == self._expected:
                self._on_complete()

    def report_started(self) -> None:
        print(json.dumps({"started": self._started_at}), flush=True)

    def report_and_exit(self) -> NoReturn:
        """For workers that cannot be stopped."""
        self.report_started()
        sys.stdout.flush()
        os._exit(0)
