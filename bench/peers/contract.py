"""What each queue's module offers the driver, and what the driver offers it.

Imports nothing that is not in the standard library: it runs under every peer's environment.
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
"""Jobs of this name are done and not counted."""


class JobProducer(Protocol):
    """Somebody who makes jobs. What is said of each is its name, a blank, and what makes it 200 bytes."""

    async def enqueue_one(self, payload: str) -> None:
        """Returns when it is durable."""
        ...

    async def enqueue_many(self, payloads: list[str]) -> None:
        """In one call; raises `NotImplementedError` where there is none."""
        ...


class Peer(Protocol):
    def run(self, coroutine: Coroutine[None, None, T]) -> T:
        """On the loop that whoever uses it well would have."""
        ...

    async def install(self, url: str) -> None: ...

    def client(self, url: str) -> AbstractAsyncContextManager[JobProducer]: ...

    def work(self, url: str, count: int) -> None:
        """Says `ready`, works until so many were started, and tells when."""
        ...


class StartRecorder:
    """Whoever works tells it of each job it begins; it says when so many were. Instants are of the monotonic clock,
    which all processes of a machine share."""

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
        """For workers that do not end when they are asked to."""
        self.report_started()
        sys.stdout.flush()
        os._exit(0)
