"""Runs a worker as a program: the first signal stops it gracefully, the second one without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Protocol

from quarterdeck.sdk.client import Quarterdeck

CANCEL_INTERVAL_SECONDS = 0.05


class RunnableWorker(Protocol):
    @property
    def is_stopping(self) -> bool: ...

    def stop(self) -> None: ...

    async def run(self) -> None: ...


async def run_until_signal(worker: RunnableWorker, client: Quarterdeck) -> None:
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
        loop.add_signal_handler(signal_number, on_signal)
    with contextlib.suppress(asyncio.CancelledError):
        async with client:
            await worker.run()
