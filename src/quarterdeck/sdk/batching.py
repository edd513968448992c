"""Combines concurrent requests into bulk calls.

Requests that arrive while the maximum number of calls is in transit share the next call. There are no timers: a single
request is sent alone and immediately. With 20 concurrent callers, at most 3 calls are in transit instead of 20, and the
server commits fewer batches. Each request gets its own result. If the server refuses a bulk call because one item is
invalid, the items are sent one by one, so that the valid ones do not fail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from quarterdeck.sdk.errors import Invalid, Problem, TooLarge

R = TypeVar("R")
MAX_CONCURRENT_CALLS = 3
"""More than one, so that the server can work on one call while others are in transit."""
BATCH_MAX_REQUESTS = 200
BATCH_MAX_BYTES = 1 << 20
"""A request that is larger than this is sent alone."""
PendingRequest = tuple[msgspec.Raw, "asyncio.Future[R]"]


class RequestBatcher(Generic[R]):
    def __init__(self, send: Callable[[Sequence[msgspec.Raw]], Awaitable[Sequence[R | Problem]]]) -> None:
        self._send = send
        """Sends the requests in one call and returns the result of each."""
        self._pending: deque[PendingRequest[R]] = deque()
        self._calls: set[asyncio.Task[None]] = set()

    async def submit(self, body: object) -> R:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._pending.append((msgspec.Raw(msgspec.json.encode(body)), future))
        self._start_calls()
        return await future

    def _start_calls(self) -> None:
        while self._pending and len(self._calls) < MAX_CONCURRENT_CALLS:
            # Each call runs in its own task: cancelling one caller must not cancel the other requests in the call.
            call = asyncio.get_running_loop().create_task(self._send_batch(self._take_batch()))
            self._calls.add(call)
            call.add_done_callback(self._on_call_done)

    def _on_call_done(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._start_calls()

    def _take_batch(self) -> list[PendingRequest[R]]:
        batch: list[PendingRequest[R]] = []
        size_bytes = 0
        while self._pending and len(batch) < BATCH_MAX_REQUESTS:
            size_bytes += len(bytes(self._pending[0][0]))
            if batch and size_bytes > BATCH_MAX_BYTES:
                break
            batch.append(self._pending.popleft())
        return batch

    async def _send_batch(self, batch: Sequence[PendingRequest[R]]) -> None:
        batch = [request for request in batch if not request[1].done()]
        if not batch:
            return
        try:
            outcomes = await self._send([body for body, _ in batch])
        except (Invalid, TooLarge) as refusal:
            if len(batch) == 1:
                _resolve(batch[0][1], refusal)
                return
            for item in batch:
                await self._send_batch([item])
        except Problem as problem:
            for index, (_, future) in enumerate(batch):
                _resolve(future, problem if len(batch) == 1 else _problem_for_item(problem, index))
        except BaseException as error:
            # This includes a cancellation: the callers must not wait forever. Each of them raises the error.
            for _, future in batch:
                _resolve(future, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), result in zip(batch, outcomes, strict=True):
                _resolve(future, result)


def _problem_for_item(problem: Problem, index: int) -> Problem:
    """A copy of a bulk call's problem, for one item.

    The server stores each item under the call's idempotency key and the item's index. A caller needs both to retry the
    item.
    """
    item_problem = type(problem)(problem.code, problem.detail)
    item_problem.members.update(problem.members)
    if (key := problem.members.get("idempotency_key")) is not None:
        item_problem.members["idempotency_key"] = f"{key}#{index}"
    return item_problem


def _resolve(future: asyncio.Future[R], result: R | BaseException) -> None:
    if future.done():
        return
    if isinstance(result, asyncio.CancelledError):
        future.cancel()
    elif isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
