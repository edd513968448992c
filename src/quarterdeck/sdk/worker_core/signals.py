"""A worker as a whole program: it serves until a signal comes, and at the second one it does not wait."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Protocol

from quarterdeck.sdk.client import Quarterdeck

HURRY_SECONDS = 0.05


class Serves(Protocol):
    @property
    def is_stopping(self) -> bool: ...

    def stop(self) -> None: ...

    async def run(self) -> None: ...


async def until_signalled(worker: Serves, client: Quarterdeck) -> None:
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    assert own is not None

    def hurry() -> None:
        # Again and again: one that comes in the same moment as the first signal only has it begin to wind down.
        if not own.done():
            own.cancel()
            loop.call_later(HURRY_SECONDS, hurry)

    def told_to_stop() -> None:
        if worker.is_stopping:
            hurry()
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop)
    with contextlib.suppress(asyncio.CancelledError):
        async with client:
            await worker.run()
