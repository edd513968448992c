"""How many leases a worker prefetches, and how leases that wait too long are released. No server is needed."""

from __future__ import annotations

import asyncio
import contextvars
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.invocation_worker.calls import HeldLease, build_lease_calls
from quarterdeck.sdk.invocation_worker.methods import Context
from quarterdeck.sdk.invocations import Invocations
from quarterdeck.sdk.types import BULK_MAX, Item, ItemProblem, Lease, Token
from quarterdeck.sdk.worker_core import lease_keeper
from quarterdeck.sdk.worker_core.in_flight import InFlight, Limits
from quarterdeck.sdk.worker_core.lease_keeper import LeaseKeeper

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_lease(name: str, lease_seconds: float = 30.0) -> HeldLease:
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
        attempt_token=f"token-{name}",
        lease_expires_at=NOW + timedelta(seconds=lease_seconds),
    )
    return HeldLease(lease, Context(lease, cast(Quarterdeck, None)))


class BlockedMethods:
    """In-flight leases whose methods end only when the test ends them."""

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self.started: list[str] = []
        self.first_started = asyncio.Event()
        self.in_flight: InFlight[HeldLease, None] = InFlight(
            Limits(concurrency, prefetch), self._run, lambda outcome, held: None
        )
        self._ends: dict[str, asyncio.Event] = {}

    async def _run(self, held: HeldLease) -> None:
        self.started.append(held.id)
        self.first_started.set()
        await self._ends.setdefault(held.id, asyncio.Event()).wait()

    async def end(self, held: HeldLease) -> None:
        self._ends.setdefault(held.id, asyncio.Event()).set()
        await asyncio.sleep(0)
        assert held.has_ended

    async def take(self, *names: str) -> list[HeldLease]:
        leases = [make_lease(name) for name in names]
        self.in_flight.add(leases)
        await asyncio.sleep(0)
        return leases


class FakeInvocations:
    """Records release and heartbeat calls, and returns the given outcomes."""

    def __init__(self, **outcomes: Item) -> None:
        self.released: list[str] = []
        self.heartbeats: list[list[str]] = []
        self._outcomes = outcomes
        self.heartbeat_sent = asyncio.Event()

    async def release(self, tokens: list[Token]) -> tuple[Item, ...]:
        self.released += [token.id for token in tokens]
        return ()

    async def heartbeat(self, tokens: list[Token]) -> tuple[Item, ...]:
        self.heartbeats.append([token.id for token in tokens])
        self.heartbeat_sent.set()
        return tuple(self._outcomes.get(token.id, Item(token.id, "running")) for token in tokens)

    def keeper(self, in_flight: InFlight[HeldLease, None]) -> LeaseKeeper[HeldLease, None]:
        return LeaseKeeper(in_flight, build_lease_calls(cast(Invocations, self)))


async def test_nothing_is_prefetched_before_a_method_duration_is_known() -> None:
    methods = BlockedMethods(2, 100)
    assert methods.in_flight.free_slots(BULK_MAX) == 2
    await methods.take("a", "b")
    assert methods.in_flight.free_slots(BULK_MAX) == 0


@pytest.mark.parametrize(("seconds", "ahead"), [(0.001, 8), (0.1, 5), (0.25, 2), (1.0, 0), (20.0, 0)])
async def test_prefetch_depends_on_the_method_duration(seconds: float, ahead: int) -> None:
    methods = BlockedMethods(2, 8)
    [first] = await methods.take("a")
    methods.in_flight.record_duration(seconds)
    methods.in_flight.remove(first.token)
    assert methods.in_flight.free_slots(BULK_MAX) == 2 + ahead


async def test_unreported_outcome_still_occupies_its_slot() -> None:
    methods = BlockedMethods(1, 0)
    [first] = await methods.take("a")
    await methods.end(first)
    assert methods.in_flight.free_slots(BULK_MAX) == 0
    slots = asyncio.create_task(methods.in_flight.wait_for_slots(BULK_MAX))
    await asyncio.sleep(0)
    assert not slots.done()
    methods.in_flight.remove(first.lease.attempt_token)
    assert await slots == 1


async def test_waiting_leases_start_in_order() -> None:
    methods = BlockedMethods(1, 8)
    leases = await methods.take("a", "b", "c")
    assert methods.started == ["a"]
    await methods.end(leases[0])
    assert methods.started == ["a", "b"]
    assert [held.id for held in methods.in_flight.drop_waiting()] == ["c"]


async def test_dropped_lease_frees_its_slot_before_it_started() -> None:
    methods = BlockedMethods(1, 8)
    first, second = make_lease("a"), make_lease("b")
    methods.in_flight.add([first, second])
    assert methods.in_flight.drop([first]) == [first]
    assert await asyncio.wait_for(methods.first_started.wait(), 30)
    assert (methods.started, methods.in_flight.running_count) == (["b"], 1)


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_context_variable_of_one_attempt_is_not_seen_by_the_next(concurrency: int) -> None:
    tenant = contextvars.ContextVar("tenant", default="none")
    seen: list[str] = []
    all_seen = asyncio.Event()

    async def run(held: HeldLease) -> None:
        seen.append(tenant.get())
        tenant.set(held.id)
        if len(seen) == 4:
            all_seen.set()

    in_flight: InFlight[HeldLease, None] = InFlight(Limits(concurrency, 8), run, lambda outcome, held: None)
    in_flight.add([make_lease(name) for name in "abcd"])
    await asyncio.wait_for(all_seen.wait(), 30)
    assert seen == ["none"] * 4


async def test_duplicate_lease_is_held_once() -> None:
    methods = BlockedMethods(1, 8)
    await methods.take("a", "b")
    await methods.take("a", "b")
    assert len(methods.in_flight) == 2
    assert [held.id for held in methods.in_flight.drop_waiting()] == ["b"]


async def test_heartbeat_extends_all_leases_and_releases_those_that_waited_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_keeper, "MIN_HEARTBEAT_SECONDS", 0.0)
    methods, fake = BlockedMethods(1, 8), FakeInvocations()
    methods.in_flight.add([make_lease("a", 0.03), make_lease("b", 0.03)])
    keeper = fake.keeper(methods.in_flight)
    keeper.set_lease_seconds(0.03)
    keep_alive = asyncio.create_task(keeper.run())
    for _ in range(2):
        await fake.heartbeat_sent.wait()
        fake.heartbeat_sent.clear()
    keep_alive.cancel()
    assert fake.heartbeats == [["a", "b"], ["a"]]
    assert fake.released == ["b"]


async def test_heartbeat_results_cancel_or_drop_the_lease() -> None:
    lost = ItemProblem("stale_attempt", "The attempt has ended.", 409)
    unavailable = ItemProblem("database_unavailable", "Unavailable.", 503)
    methods = BlockedMethods(4, 0)
    fake = FakeInvocations(
        canceled=Item("canceled", "running", cancel=True),
        lost=Item("lost", error=lost),
        unavailable=Item("unavailable", error=unavailable),
    )
    leases = {each.lease.id: each for each in await methods.take("canceled", "lost", "unavailable", "running")}
    await fake.keeper(methods.in_flight).extend_leases()
    assert {name for name, each in leases.items() if each.context.cancelled} == {"canceled", "lost"}
    assert {name for name, each in leases.items() if each.is_dropped} == {"lost"}
    assert len(methods.in_flight) == 3


async def test_lease_that_ended_during_a_heartbeat_is_not_dropped() -> None:
    methods = BlockedMethods(1, 0)
    fake = FakeInvocations(a=Item("a", error=ItemProblem("invocation_not_completable", "The attempt has ended.", 409)))
    [first] = await methods.take("a")
    await methods.end(first)
    await fake.keeper(methods.in_flight).extend_leases()
    assert not first.is_dropped
