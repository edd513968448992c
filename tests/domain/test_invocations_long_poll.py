"""Who waits for work in one process: what is handed over reaches whoever waits, or goes back, and never both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from quarterdeck.domain.invocations.model import Claim, Invocation
from quarterdeck.domain.invocations.operations.long_poll import (
    ClaimedItems,
    ClaimPoll,
    ClaimPolls,
    wait_for_invocations,
)
from quarterdeck.engine.long_poll import LongPoll
from tests.support.structs import build_struct

SERVICE = ("z", "s")
CLAIM = Claim(zone_id="z", service_id="s", limit=2, attempt_tokens=("t1", "t2"), claim_id="c")


def lease(name: str) -> Invocation:
    fields = dict.fromkeys(Invocation.__struct_fields__, None)
    return build_struct(Invocation, **{**fields, "id": name, "zone_id": "z", "service_id": "s"})


class Desk:
    """Stands for the lane: answers each asking when it is told to, and remembers who waits and what came back."""

    def __init__(self) -> None:
        self.waiters = ClaimPolls()
        self.unwanted: list[str] = []
        self.waiters.on_undelivered = self._note
        self.asked: asyncio.Queue[tuple[ClaimPoll, asyncio.Future[ClaimedItems]]] = asyncio.Queue()

    def _note(self, given: Sequence[Invocation]) -> None:
        self.unwanted += [row.id for row in given]

    async def submit(self, claim: Claim) -> ClaimedItems:
        assert isinstance(claim.waiter, LongPoll)
        answer: asyncio.Future[ClaimedItems] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((claim.waiter, answer))
        return await answer

    def begin(self, seconds: float = 30.0) -> asyncio.Task[ClaimedItems]:
        return asyncio.create_task(wait_for_invocations(CLAIM, self.submit, self.waiters, seconds))

    async def parked(self) -> ClaimPoll:
        """Whoever asks next finds nothing, and waits."""
        waiter, answer = await self.asked.get()
        self.waiters.add(waiter)
        answer.set_result(())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return waiter


async def test_what_is_handed_over_reaches_whoever_waits() -> None:
    desk = Desk()
    waiting = desk.begin()
    waiter = await desk.parked()
    desk.waiters.deliver(waiter, (lease("a"),))
    assert [row.id for row in await waiting] == ["a"]
    assert desk.unwanted == []
    assert len(desk.waiters) == 0


@pytest.mark.parametrize("found", [(), ("a",), ("a", "b"), ("b",)])
async def test_what_is_handed_over_while_it_was_told_to_ask_again_is_kept_and_not_given_back(
    found: tuple[str, ...],
) -> None:
    desk = Desk()
    waiting = desk.begin()
    waiter = await desk.parked()
    desk.waiters.retry_first(SERVICE, 1)
    again, answer = await desk.asked.get()
    assert again is waiter
    # The commit that handed "a" over was under way all the time, and is through only now.
    desk.waiters.deliver(waiter, (lease("a"),))
    answer.set_result(tuple(lease(name) for name in found))
    assert [row.id for row in await waiting] == ["a"]
    assert desk.unwanted == [name for name in found if name != "a"]


async def test_what_is_handed_over_before_it_has_gone_to_ask_again_saves_it_the_asking() -> None:
    desk = Desk()
    waiting = desk.begin()
    waiter = await desk.parked()
    desk.waiters.retry_first(SERVICE, 1)
    desk.waiters.deliver(waiter, (lease("a"),))
    assert [row.id for row in await waiting] == ["a"]
    assert (desk.unwanted, desk.asked.empty()) == ([], True)


async def test_what_is_handed_to_somebody_who_has_gone_goes_back() -> None:
    desk = Desk()
    waiting = desk.begin()
    waiter = await desk.parked()
    waiting.cancel()
    await asyncio.wait([waiting])
    desk.waiters.deliver(waiter, (lease("a"),))
    assert desk.unwanted == ["a"]


async def test_whoever_goes_with_something_in_hand_gives_it_back() -> None:
    desk = Desk()
    waiting = desk.begin()
    waiter = await desk.parked()
    waiting.cancel()
    desk.waiters.deliver(waiter, (lease("a"),))
    await asyncio.wait([waiting])
    assert desk.unwanted == ["a"]


async def test_whoever_runs_out_of_time_is_given_nothing() -> None:
    desk = Desk()
    waiting = desk.begin(0.01)
    await desk.parked()
    assert await waiting == ()
    assert len(desk.waiters) == 0
