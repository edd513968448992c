"""Long polls of one process: a delivery reaches the waiting claim or is returned as undelivered, never both."""

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


def invocation_row(name: str) -> Invocation:
    fields = dict.fromkeys(Invocation.__struct_fields__, None)
    return build_struct(Invocation, **{**fields, "id": name, "zone_id": "z", "service_id": "s"})


class FakeLane:
    """A fake lane: the test answers each claim, and it records polls and undelivered invocations."""

    def __init__(self) -> None:
        self.polls = ClaimPolls()
        self.undelivered: list[str] = []
        self.polls.on_undelivered = self._record_undelivered
        self.requests: asyncio.Queue[tuple[ClaimPoll, asyncio.Future[ClaimedItems]]] = asyncio.Queue()

    def _record_undelivered(self, rows: Sequence[Invocation]) -> None:
        self.undelivered += [row.id for row in rows]

    async def submit(self, claim: Claim) -> ClaimedItems:
        assert isinstance(claim.waiter, LongPoll)
        answer: asyncio.Future[ClaimedItems] = asyncio.get_running_loop().create_future()
        self.requests.put_nowait((claim.waiter, answer))
        return await answer

    def start_claim(self, seconds: float = 30.0) -> asyncio.Task[ClaimedItems]:
        return asyncio.create_task(wait_for_invocations(CLAIM, self.submit, self.polls, seconds))

    async def park_next(self) -> ClaimPoll:
        """Answer the next claim with nothing, so that it waits."""
        poll, answer = await self.requests.get()
        self.polls.add(poll)
        answer.set_result(())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return poll


async def test_delivery_reaches_the_waiting_claim() -> None:
    lane = FakeLane()
    claim = lane.start_claim()
    poll = await lane.park_next()
    lane.polls.deliver(poll, (invocation_row("a"),))
    assert [row.id for row in await claim] == ["a"]
    assert lane.undelivered == []
    assert len(lane.polls) == 0


@pytest.mark.parametrize("found", [(), ("a",), ("a", "b"), ("b",)])
async def test_delivery_during_a_retry_is_returned_and_not_undelivered(found: tuple[str, ...]) -> None:
    lane = FakeLane()
    claim = lane.start_claim()
    poll = await lane.park_next()
    lane.polls.retry_first(SERVICE, 1)
    retried, answer = await lane.requests.get()
    assert retried is poll
    # The commit that delivers "a" was running meanwhile and finishes only now.
    lane.polls.deliver(poll, (invocation_row("a"),))
    answer.set_result(tuple(invocation_row(name) for name in found))
    assert [row.id for row in await claim] == ["a"]
    assert lane.undelivered == [name for name in found if name != "a"]


async def test_delivery_before_a_retry_starts_makes_the_retry_unnecessary() -> None:
    lane = FakeLane()
    claim = lane.start_claim()
    poll = await lane.park_next()
    lane.polls.retry_first(SERVICE, 1)
    lane.polls.deliver(poll, (invocation_row("a"),))
    assert [row.id for row in await claim] == ["a"]
    assert (lane.undelivered, lane.requests.empty()) == ([], True)


async def test_delivery_to_a_cancelled_claim_is_undelivered() -> None:
    lane = FakeLane()
    claim = lane.start_claim()
    poll = await lane.park_next()
    claim.cancel()
    await asyncio.wait([claim])
    lane.polls.deliver(poll, (invocation_row("a"),))
    assert lane.undelivered == ["a"]


async def test_delivery_to_a_claim_being_cancelled_is_undelivered() -> None:
    lane = FakeLane()
    claim = lane.start_claim()
    poll = await lane.park_next()
    claim.cancel()
    lane.polls.deliver(poll, (invocation_row("a"),))
    await asyncio.wait([claim])
    assert lane.undelivered == ["a"]


async def test_claim_returns_nothing_after_its_timeout() -> None:
    lane = FakeLane()
    claim = lane.start_claim(0.01)
    await lane.park_next()
    assert await claim == ()
    assert len(lane.polls) == 0
