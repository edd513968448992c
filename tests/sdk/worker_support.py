"""Helpers of the worker tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TypeVar

from quarterdeck.sdk import NotSucceeded, Quarterdeck
from quarterdeck.sdk.types import Invocation
from quarterdeck.sdk.worker_core.lifecycle import RegisteredWorker

S = TypeVar("S")
TIMEOUT_SECONDS = 60.0


@contextlib.asynccontextmanager
async def run_worker(worker: RegisteredWorker[S]) -> AsyncIterator[S]:
    """Runs a worker for the body, then stops it and raises its failure, if any. Yields its service or agent."""
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
    """Returns the invocation when it has ended, in any state."""
    try:
        return await qd.invocations.wait(invocation.id, timeout=TIMEOUT_SECONDS)
    except NotSucceeded as error:
        return error.invocation


def count_calls(requests: list[bytes], *parts: bytes) -> int:
    """Counts the requests whose first line contains all parts."""
    return sum(all(part in request.split(b"\r\n", 1)[0] for part in parts) for request in requests)
