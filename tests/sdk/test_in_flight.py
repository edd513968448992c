"""How many leases a worker takes ahead, and what becomes of those that wait too long. Nothing here needs a server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.invocation_worker import in_flight
from quarterdeck.sdk.invocation_worker.in_flight import HeldLease, InFlight, Limits
from quarterdeck.sdk.invocation_worker.methods import Context
from quarterdeck.sdk.invocations import Invocations
from quarterdeck.sdk.types import Item, ItemProblem, Lease, Token

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def held(name: str, lease_seconds: float = 30.0) -> HeldLease:
    lease = Lease(
        id=name,
        zone_id="z",
        service_id="s",
        application_id="app",
        source_session_id=None,
        target_session_id=None,
        idempotency_key=name,
        method="m",
        params=None,
        metadata={},
        status="running",
        attempts=1,
        max_attempts=3,
        timeout_ms=30_000,
        retry_policy={},
        result=None,
        error=None,
        available_at=NOW,
        deadline_at=None,
        cancel_requested_at=None,
        cancel_reason=None,
        started_at=NOW,
        completed_at=None,
        created_at=NOW,
        updated_at=NOW,
        attempt=1,
        attempt_token=f"token of {name}",
        lease_expires_at=NOW + timedelta(seconds=lease_seconds),
    )
    return HeldLease(lease, Context(lease, cast(Quarterdeck, None)))


class Running:
    """Holdings whose methods never end by themselves."""

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self.begun: list[str] = []
        self.first_begun = asyncio.Event()
        self.all = InFlight(Limits(concurrency, prefetch), self._begin)

    async def _begin(self, each: HeldLease) -> None:
        self.begun.append(each.lease.id)
        self.first_begun.set()
        await asyncio.Event().wait()

    async def take(self, *names: str) -> list[HeldLease]:
        taken = [held(name) for name in names]
        self.all.add(taken)
        await asyncio.sleep(0)
        return taken


class Wire:
    """Stands for the calls of a worker: notes them, and answers as it was told."""

    def __init__(self, **outcomes: Item) -> None:
        self.released: list[str] = []
        self.beaten: list[list[str]] = []
        self._outcomes = outcomes
        self.has_beaten = asyncio.Event()

    async def release(self, tokens: list[Token]) -> tuple[Item, ...]:
        self.released += [token.id for token in tokens]
        return ()

    async def heartbeat(self, tokens: list[Token]) -> tuple[Item, ...]:
        self.beaten.append([token.id for token in tokens])
        self.has_beaten.set()
        return tuple(self._outcomes.get(token.id, Item(token.id, "running")) for token in tokens)

    @property
    def as_invocations(self) -> Invocations:
        return cast(Invocations, self)


async def test_nothing_is_taken_ahead_before_it_is_known_how_long_methods_take() -> None:
    running = Running(2, 100)
    assert running.all.free_slots() == 2
    await running.take("a", "b")
    assert running.all.free_slots() == 0


@pytest.mark.parametrize(("seconds", "ahead"), [(0.001, 8), (0.1, 5), (0.25, 2), (1.0, 0), (20.0, 0)])
async def test_as_much_is_taken_ahead_as_begins_soon(seconds: float, ahead: int) -> None:
    running = Running(2, 8)
    [first] = await running.take("a")
    running.all.mark_ended(first, seconds)
    running.all.remove(first.lease.attempt_token)
    assert running.all.free_slots() == 2 + ahead


async def test_an_outcome_that_is_not_told_yet_still_holds_its_lease() -> None:
    running = Running(1, 0)
    [first] = await running.take("a")
    running.all.mark_ended(first, 20.0)
    assert running.all.free_slots() == 0
    room = asyncio.create_task(running.all.wait_for_slots())
    await asyncio.sleep(0)
    assert not room.done()
    running.all.remove(first.lease.attempt_token)
    assert await room == 1


async def test_what_waits_begins_in_order_as_methods_end() -> None:
    running = Running(1, 8)
    taken = await running.take("a", "b", "c")
    assert running.begun == ["a"]
    running.all.mark_ended(taken[0], 0.001)
    await asyncio.sleep(0)
    assert running.begun == ["a", "b"]
    assert [token.id for token in running.all.drop_waiting()] == ["c"]


async def test_what_is_dropped_before_its_first_step_gives_its_place_back() -> None:
    running = Running(1, 8)
    running.all.add([held("a"), held("b")])
    assert [token.id for token in running.all.drop_running()] == ["a"]
    assert await asyncio.wait_for(running.first_begun.wait(), 30)
    assert (running.begun, running.all.running) == (["b"], 1)


async def test_a_lease_that_is_given_twice_is_held_once() -> None:
    running = Running(1, 8)
    await running.take("a", "b")
    await running.take("a", "b")
    assert len(running.all) == 2
    assert [token.id for token in running.all.drop_waiting()] == ["b"]


async def test_everything_held_is_prolonged_in_one_call_and_what_waited_for_a_whole_beat_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_flight, "MIN_HEARTBEAT_SECONDS", 0.0)
    running, wire = Running(1, 8), Wire()
    running.all.add([held("a", 0.03), held("b", 0.03)])
    beating = asyncio.create_task(running.all.keep_alive(wire.as_invocations))
    for _ in range(2):
        await wire.has_beaten.wait()
        wire.has_beaten.clear()
    beating.cancel()
    assert wire.beaten == [["a", "b"], ["a"]]
    assert wire.released == ["b"]


async def test_what_a_heartbeat_says_reaches_the_method() -> None:
    lost = ItemProblem("stale_attempt", "Over.", 409)
    away = ItemProblem("database_unavailable", "Away.", 503)
    running = Running(4, 0)
    wire = Wire(
        canceled=Item("canceled", "running", cancel=True), lost=Item("lost", error=lost), away=Item("away", error=away)
    )
    taken = {each.lease.id: each for each in await running.take("canceled", "lost", "away", "fine")}
    await running.all._send_heartbeats(wire.as_invocations)
    assert {name for name, each in taken.items() if each.context.cancelled} == {"canceled", "lost"}
    assert {name for name, each in taken.items() if each.is_dropped} == {"lost"}
    assert len(running.all) == 3


async def test_a_lease_that_ended_in_the_moment_of_the_heartbeat_is_not_called_lost() -> None:
    running = Running(1, 0)
    wire = Wire(a=Item("a", error=ItemProblem("invocation_not_completable", "Over.", 409)))
    [first] = await running.take("a")
    running.all.mark_ended(first, 0.1)
    await running.all._send_heartbeats(wire.as_invocations)
    assert not first.is_dropped
