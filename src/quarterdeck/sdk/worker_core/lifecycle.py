"""The life of a worker: it registers, runs until it is stopped, and shuts down.

At the shutdown claims stop, what has not started is given back, what runs may finish, and all is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.errors import Problem
from quarterdeck.sdk.worker_core.claims import Claimer
from quarterdeck.sdk.worker_core.in_flight import HeldAttempt, InFlight

log = logging.getLogger("quarterdeck.sdk.worker")
S = TypeVar("S")
L = TypeVar("L")
H = TypeVar("H", bound=HeldAttempt)
R = TypeVar("R")
CANCEL_INTERVAL_SECONDS = 0.05
FINAL_REPORT_SECONDS = 5.0
"""Time after the grace period to give back running attempts and report outcomes."""


class RegisteredWorker(Generic[S]):
    """A worker that registers a service or an agent (`S`)."""

    def __init__(self, client: Quarterdeck) -> None:
        self._client = client
        self._stopping = asyncio.Event()
        self._registered = asyncio.Event()
        self._registration: S | None = None

    def main(self) -> None:
        """Work until SIGTERM or SIGINT, for a program that does nothing else. A second signal stops immediately."""
        asyncio.run(run_until_signal(self, self._client))

    async def run(self) -> None:
        """Work until `stop` is called or this call is cancelled. Raises if the server refuses this worker."""
        raise NotImplementedError

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stop claiming, finish the running functions, and give back the rest. Call this on the event loop."""
        self._stopping.set()

    async def until_registered(self) -> S:
        """Wait until the worker has registered its service or agent, and return it."""
        await self._registered.wait()
        assert self._registration is not None
        return self._registration

    def _set_registered(self, registration: S) -> None:
        self._registration = registration
        self._registered.set()

    async def _wait_until_stopped(self) -> None:
        await self._stopping.wait()


async def run_until_signal(worker: RegisteredWorker[S], client: Quarterdeck) -> None:
    loop, main_task = asyncio.get_running_loop(), asyncio.current_task()
    assert main_task is not None

    def cancel_repeatedly() -> None:
        # Repeat the cancellation, because a cancellation before the shutdown only starts the shutdown.
        if not main_task.done():
            main_task.cancel()
            loop.call_later(CANCEL_INTERVAL_SECONDS, cancel_repeatedly)

    def on_signal() -> None:
        if worker.is_stopping:
            cancel_repeatedly()
        worker.stop()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # on Windows, Ctrl-C cancels `main_task`
            loop.add_signal_handler(signal_number, on_signal)
    with contextlib.suppress(asyncio.CancelledError):
        async with client:
            await worker.run()


@dataclass(frozen=True, slots=True)
class Shutdown(Generic[H, R]):
    noun: str
    in_flight: InFlight[H, R]
    give_back: Callable[[Sequence[H]], Awaitable[None]]
    wait_until_sent: Callable[[], Awaitable[None]]

    async def run(self, claimers: Iterable[Claimer[L]], grace_seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                for claimer in claimers:
                    with log_problems(f"could not give back the {self.noun} of the last claim"):
                        await claimer.release_pending_claim()
                await self.give_back(self.in_flight.drop_waiting())
                await self.in_flight.wait_until_none_running()
                await self.wait_until_sent()
                return
        count = self.in_flight.running_count
        log.warning("%d %s did not end within %g s; giving them back", count, self.noun, grace_seconds)
        running = self.in_flight.drop_running()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINAL_REPORT_SECONDS):
                await self.give_back(running)
                await self.wait_until_sent()


@contextlib.contextmanager
def log_problems(message: str, level: int = logging.WARNING) -> Iterator[None]:
    """Log a `Problem` instead of raising it, for calls whose failure the worker tolerates."""
    try:
        yield
    except Problem as problem:
        log.log(level, "%s: %s", message, problem.detail)


async def cancel_and_wait(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
