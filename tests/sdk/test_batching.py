"""Asks that go together. Nothing here needs a server."""

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
"""As many as go at once, each alone."""


class Wire:
    """Gives each body back in capitals, once it is let."""

    def __init__(self, *faults: Problem) -> None:
        self._faults = [*faults]
        self.calls: list[list[str]] = []
        self.let = asyncio.Event()

    async def until_under_way(self, calls: int) -> None:
        async def are() -> bool:
            return len(self.calls) == calls

        await eventually(are, f"{calls} calls were under way")

    async def send(self, bodies: Sequence[msgspec.Raw]) -> Sequence[str | Problem]:
        said = [msgspec.json.decode(body, type=str) for body in bodies]
        self.calls.append(said)
        await self.let.wait()
        if self._faults:
            raise self._faults.pop(0)
        if BAD in said:
            raise Invalid("invalid_body", "Bad.")
        return [Conflict("taken", "Taken.") if each == "taken" else each.upper() for each in said]


async def asked(wire: Wire, *bodies: str) -> list[str | BaseException]:
    """All at once; the calls go through when all of them stand in the queue."""
    gatherer = RequestBatcher(wire.send)
    waiting = [asyncio.create_task(gatherer.submit(body)) for body in bodies]
    await wire.until_under_way(min(MAX_CONCURRENT_CALLS, len(bodies)))
    wire.let.set()
    return await asyncio.gather(*waiting, return_exceptions=True)


async def test_whoever_comes_alone_goes_at_once_and_the_others_go_together() -> None:
    wire = Wire()
    assert await asked(wire, *FIRST, *"cdef") == [*(each.upper() for each in FIRST), *"CDEF"]
    assert wire.calls == [*([each] for each in FIRST), ["c", "d", "e", "f"]]


async def test_each_gets_its_own_refusal() -> None:
    found = await asked(Wire(), *FIRST, "taken", "c")
    assert [each for each in found if isinstance(each, str)][MAX_CONCURRENT_CALLS:] == ["C"]
    assert isinstance(found[MAX_CONCURRENT_CALLS], Conflict)


async def test_a_body_that_is_not_taken_does_not_hurt_those_that_go_with_it() -> None:
    wire = Wire()
    found = await asked(wire, *FIRST, BAD, "c")
    assert [each for each in found if isinstance(each, str)][MAX_CONCURRENT_CALLS:] == ["C"]
    assert isinstance(found[MAX_CONCURRENT_CALLS], Invalid)
    assert wire.calls[MAX_CONCURRENT_CALLS:] == [[BAD, "c"], [BAD], ["c"]]


async def test_what_befalls_a_call_befalls_each_with_the_key_it_was_kept_under() -> None:
    away = [Unavailable("away", "Away.", idempotency_key=key) for key in (*FIRST, "many")]
    found = await asked(Wire(*away), *FIRST, "c", "d")
    keys = [each.members["idempotency_key"] for each in found if isinstance(each, Unavailable)]
    assert keys == [*FIRST, "many#0", "many#1"]


async def test_a_defect_is_raised_to_each_and_nobody_waits_for_ever() -> None:
    async def broken(_: Sequence[msgspec.Raw]) -> Sequence[str]:
        raise RuntimeError("a defect")

    gatherer: RequestBatcher[str] = RequestBatcher(broken)
    found = await asyncio.gather(*(gatherer.submit(body) for body in "abcd"), return_exceptions=True)
    assert [type(each) for each in found] == [RuntimeError] * 4


async def test_who_gives_up_waiting_takes_nobody_along() -> None:
    wire = Wire()
    gatherer = RequestBatcher(wire.send)
    waiting = [asyncio.create_task(gatherer.submit(body)) for body in (*FIRST, *"cde")]
    await wire.until_under_way(MAX_CONCURRENT_CALLS)
    waiting[0].cancel()
    waiting[MAX_CONCURRENT_CALLS + 1].cancel()
    wire.let.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [each for each in found if isinstance(each, str)][MAX_CONCURRENT_CALLS - 1 :] == ["C", "E"]
    assert wire.calls[MAX_CONCURRENT_CALLS:] == [["c", "e"]], "what nobody waits for any more was sent"


async def test_no_call_is_larger_than_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "BATCH_MAX", 3)
    monkeypatch.setattr(batching, "BYTES_MAX", 30)
    wire = Wire()
    long = "x" * 40
    assert len(await asked(wire, *FIRST, *"cdef", long, "g")) == MAX_CONCURRENT_CALLS + 6
    assert wire.calls[MAX_CONCURRENT_CALLS:] == [["c", "d", "e"], ["f"], [long], ["g"]]
