"""Asks that go together: what comes while a call is under way goes with the next.

There are no timers: whoever comes alone goes at once, and alone. Twenty callers who each wait for their own cost some
three calls at a time instead of twenty, and the server few batches. Each gets its own outcome. What the server will not
take of a call (it names one bad field and refuses all) is sent one by one, so nobody pays for a neighbour.
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
"""Under way at once, so that the server works on one while others are on their way."""
BATCH_MAX = 200
BYTES_MAX = 1 << 20
"""Of what goes together; anything larger goes alone."""
PendingRequest = tuple[msgspec.Raw, "asyncio.Future[R]"]


class RequestBatcher(Generic[R]):
    def __init__(self, send: Callable[[Sequence[msgspec.Raw]], Awaitable[Sequence[R | Problem]]]) -> None:
        self._send = send
        """Sends these in one call, and gives the outcome of each."""
        self._pending: deque[PendingRequest[R]] = deque()
        self._calls: set[asyncio.Task[None]] = set()

    async def submit(self, body: object) -> R:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._pending.append((msgspec.Raw(msgspec.json.encode(body)), future))
        self._start_calls()
        return await future

    def _start_calls(self) -> None:
        while self._pending and len(self._calls) < MAX_CONCURRENT_CALLS:
            # In a task of its own: whoever gives up waiting does not take along those who go with it.
            call = asyncio.get_running_loop().create_task(self._send_batch(self._take_batch()))
            self._calls.add(call)
            call.add_done_callback(self._on_call_done)

    def _on_call_done(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._start_calls()

    def _take_batch(self) -> list[PendingRequest[R]]:
        batch: list[PendingRequest[R]] = []
        size = 0
        while self._pending and len(batch) < BATCH_MAX:
            size += len(bytes(self._pending[0][0]))
            if batch and size > BYTES_MAX:
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
            # Whatever it is, also that the loop ends: those who wait for this call must not wait for ever. Each of
            # them raises it.
            for _, future in batch:
                _resolve(future, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), result in zip(batch, outcomes, strict=True):
                _resolve(future, result)


def _problem_for_item(problem: Problem, index: int) -> Problem:
    """What befell a call, as it befell one of those that went with it. The server keeps each under the key of the call
    and its place: whoever asks for the same again needs that."""
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
