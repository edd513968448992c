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
WARM = "warm"
"""Jobs of this name are done and not counted."""


class Put(Protocol):
    """Somebody who makes jobs. What is said of each is its name, a blank, and what makes it 200 bytes."""

    async def one(self, said: str) -> None:
        """Returns when it is durable."""
        ...

    async def many(self, said: list[str]) -> None:
        """In one call; raises `NotImplementedError` where there is none."""
        ...


class Peer(Protocol):
    def run(self, what: Coroutine[None, None, T]) -> T:
        """On the loop that whoever uses it well would have."""
        ...

    async def install(self, url: str) -> None: ...

    def client(self, url: str) -> AbstractAsyncContextManager[Put]: ...

    def work(self, url: str, number: int) -> None:
        """Says `ready`, works until so many were started, and tells when."""
        ...


class Started:
    """Whoever works tells it of each job it begins; it says when so many were. Instants are of the monotonic clock,
    which all processes of a machine share."""

    def __init__(self, number: int, enough: Callable[[], object]) -> None:
        self._number = number
        self._enough = enough
        self._at: dict[str, float] = {}

    def ready(self) -> None:
        print(json.dumps({"ready": time.monotonic()}), flush=True)

    def begin(self, said: str) -> None:
        name = said.partition(" ")[0]
        if name != WARM:
            self._at[name] = time.monotonic()
            if len(self._at) == self._number:
                self._enough()

    def tell(self) -> None:
        print(json.dumps({"started": self._at}), flush=True)

    def tell_and_leave(self) -> NoReturn:
        """For workers that do not end when they are asked to."""
        self.tell()
        sys.stdout.flush()
        os._exit(0)
