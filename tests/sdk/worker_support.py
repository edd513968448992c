"""What tests of workers share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from quarterdeck.sdk import NotSucceeded, Quarterdeck, Worker
from quarterdeck.sdk.types import Invocation, Service

TIMEOUT_SECONDS = 60.0


@contextlib.asynccontextmanager
async def run_worker(worker: Worker) -> AsyncIterator[Service]:
    """While the worker serves; stopped, and its failure raised, at the end."""
    running = asyncio.create_task(worker.run())
    registered = asyncio.create_task(worker.until_registered())
    try:
        await asyncio.wait([running, registered], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        yield await registered
    finally:
        registered.cancel()
        worker.stop()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await running


async def wait_until_ended(qd: Quarterdeck, invocation: Invocation) -> Invocation:
    """However it ends."""
    try:
        return await qd.invocations.wait(invocation.id, timeout=TIMEOUT_SECONDS)
    except NotSucceeded as error:
        return error.invocation


def count_calls(requests: list[bytes], *parts: bytes) -> int:
    """How many of these requests have all of this in their first line."""
    return sum(all(part in request.split(b"\r\n", 1)[0] for part in parts) for request in requests)
