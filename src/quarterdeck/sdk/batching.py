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
CALLS = 3
"""Under way at once, so that the server works on one while others are on their way."""
TOGETHER_MAX = 200
BYTES_MAX = 1 << 20
"""Of what goes together; anything larger goes alone."""
Waiting = tuple[msgspec.Raw, "asyncio.Future[R]"]


class Gatherer(Generic[R]):
    def __init__(self, send: Callable[[Sequence[msgspec.Raw]], Awaitable[Sequence[R | Problem]]]) -> None:
        self._send = send
        """Sends these in one call, and gives the outcome of each."""
        self._waiting: deque[Waiting[R]] = deque()
        self._calls: set[asyncio.Task[None]] = set()

    async def ask(self, body: object) -> R:
        outcome: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((msgspec.Raw(msgspec.json.encode(body)), outcome))
        self._begin()
        return await outcome

    def _begin(self) -> None:
        while self._waiting and len(self._calls) < CALLS:
            # In a task of its own: whoever gives up waiting does not take along those who go with it.
            call = asyncio.get_running_loop().create_task(self._call(self._take()))
            self._calls.add(call)
            call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._begin()

    def _take(self) -> list[Waiting[R]]:
        taken: list[Waiting[R]] = []
        size = 0
        while self._waiting and len(taken) < TOGETHER_MAX:
            size += len(bytes(self._waiting[0][0]))
            if taken and size > BYTES_MAX:
                break
            taken.append(self._waiting.popleft())
        return taken

    async def _call(self, batch: Sequence[Waiting[R]]) -> None:
        batch = [each for each in batch if not each[1].done()]
        if not batch:
            return
        try:
            outcomes = await self._send([body for body, _ in batch])
        except (Invalid, TooLarge) as refusal:
            if len(batch) == 1:
                _settle(batch[0][1], refusal)
                return
            for each in batch:
                await self._call([each])
        except Problem as problem:
            for place, (_, outcome) in enumerate(batch):
                _settle(outcome, problem if len(batch) == 1 else _of_one(problem, place))
        except BaseException as wrong:
            # Whatever it is, also that the loop ends: those who wait for this call must not wait for ever. Each of
            # them raises it.
            for _, outcome in batch:
                _settle(outcome, wrong)
            if not isinstance(wrong, Exception):
                raise
        else:
            for (_, outcome), found in zip(batch, outcomes, strict=True):
                _settle(outcome, found)


def _of_one(problem: Problem, place: int) -> Problem:
    """What befell a call, as it befell one of those that went with it. The server keeps each under the key of the call
    and its place: whoever asks for the same again needs that."""
    own = type(problem)(problem.code, problem.detail)
    own.members.update(problem.members)
    if (key := problem.members.get("idempotency_key")) is not None:
        own.members["idempotency_key"] = f"{key}#{place}"
    return own


def _settle(outcome: asyncio.Future[R], found: R | BaseException) -> None:
    if outcome.done():
        return
    if isinstance(found, asyncio.CancelledError):
        outcome.cancel()
    elif isinstance(found, BaseException):
        outcome.set_exception(found)
    else:
        outcome.set_result(found)
