"""The request batcher. No server is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from quarterdeck.sdk import batching
from quarterdeck.sdk.batching import MAX_CONCURRENT_CALLS, RequestBatcher
from quarterdeck.sdk.errors import Conflict, Invalid, Problem, Unavailable
from tests.support.eventually import eventually

BAD = "bad"
FIRST = [f"first{n}" for n in range(MAX_CONCURRENT_CALLS)]
"""One body for each concurrent call. Each is sent alone."""


class FakeServer:
    """Returns each body in upper case after `may_answer` is set."""

    def __init__(self, *faults: Problem) -> None:
        self._faults = [*faults]
        self.calls: list[list[str]] = []
        self.may_answer = asyncio.Event()

    async def wait_for_calls(self, calls: int) -> None:
        async def is_reached() -> bool:
            return len(self.calls) == calls

        await eventually(is_reached, f"{calls} calls are in flight")

    async def send(self, bodies: Sequence[msgspec.Raw]) -> Sequence[str | Problem]:
        texts = [msgspec.json.decode(body, type=str) for body in bodies]
        self.calls.append(texts)
        await self.may_answer.wait()
        if self._faults:
            raise self._faults.pop(0)
        if BAD in texts:
            raise Invalid("invalid_body", "Bad.")
        return [Conflict("taken", "Taken.") if each == "taken" else each.upper() for each in texts]


async def submit_all(server: FakeServer, *bodies: str) -> list[str | BaseException]:
    """Submits all bodies at once and lets the calls answer when all are queued."""
    batcher = RequestBatcher(server.send)
    waiting = [asyncio.create_task(batcher.submit(body)) for body in bodies]
    await server.wait_for_calls(min(MAX_CONCURRENT_CALLS, len(bodies)))
    server.may_answer.set()
    return await asyncio.gather(*waiting, return_exceptions=True)


async def test_first_bodies_are_sent_at_once_and_later_ones_in_one_batch() -> None:
    server = FakeServer()
    assert await submit_all(server, *FIRST, *"cdef") == [*(each.upper() for each in FIRST), *"CDEF"]
    assert server.calls == [*([each] for each in FIRST), ["c", "d", "e", "f"]]


async def test_each_body_gets_its_own_refusal() -> None:
    results = await submit_all(FakeServer(), *FIRST, "taken", "c")
    assert [each for each in results if isinstance(each, str)][MAX_CONCURRENT_CALLS:] == ["C"]
    assert isinstance(results[MAX_CONCURRENT_CALLS], Conflict)


async def test_invalid_body_does_not_fail_the_rest_of_its_batch() -> None:
    server = FakeServer()
    results = await submit_all(server, *FIRST, BAD, "c")
    assert [each for each in results if isinstance(each, str)][MAX_CONCURRENT_CALLS:] == ["C"]
    assert isinstance(results[MAX_CONCURRENT_CALLS], Invalid)
    assert server.calls[MAX_CONCURRENT_CALLS:] == [[BAD, "c"], [BAD], ["c"]]


async def test_failed_call_is_raised_to_each_body_with_its_key() -> None:
    faults = [Unavailable("unavailable", "Unavailable.", idempotency_key=key) for key in (*FIRST, "many")]
    results = await submit_all(FakeServer(*faults), *FIRST, "c", "d")
    keys = [each.members["idempotency_key"] for each in results if isinstance(each, Unavailable)]
    assert keys == [*FIRST, "many#0", "many#1"]


async def test_unexpected_error_is_raised_to_every_waiter() -> None:
    async def broken(_: Sequence[msgspec.Raw]) -> Sequence[str]:
        raise RuntimeError("unexpected")

    batcher: RequestBatcher[str] = RequestBatcher(broken)
    results = await asyncio.gather(*(batcher.submit(body) for body in "abcd"), return_exceptions=True)
    assert [type(each) for each in results] == [RuntimeError] * 4


async def test_canceled_waiter_does_not_cancel_the_batch() -> None:
    server = FakeServer()
    batcher = RequestBatcher(server.send)
    waiting = [asyncio.create_task(batcher.submit(body)) for body in (*FIRST, *"cde")]
    await server.wait_for_calls(MAX_CONCURRENT_CALLS)
    waiting[0].cancel()
    waiting[MAX_CONCURRENT_CALLS + 1].cancel()
    server.may_answer.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [each for each in results if isinstance(each, str)][MAX_CONCURRENT_CALLS - 1 :] == ["C", "E"]
    assert server.calls[MAX_CONCURRENT_CALLS:] == [["c", "e"]], "a canceled body was sent"


async def test_batches_respect_count_and_size_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "BATCH_MAX_REQUESTS", 3)
    monkeypatch.setattr(batching, "BATCH_MAX_BYTES", 30)
    server = FakeServer()
    long = "x" * 40
    assert len(await submit_all(server, *FIRST, *"cdef", long, "g")) == MAX_CONCURRENT_CALLS + 6
    assert server.calls[MAX_CONCURRENT_CALLS:] == [["c", "d", "e"], ["f"], [long], ["g"]]
