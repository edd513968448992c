"""Batches of a lane on a fake store: which commands share a batch, which wait, and which outcome each caller gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest

from quarterdeck.core.errors import Conflict, Internal, NotFound, Problem, Unavailable
from quarterdeck.core.retry import Policy
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import BUSY, Busy, Lane, LaneLimits, Lanes
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import CommitUnknown, ContentError, Row, StoreError, StoreWork, T, TransientError
from quarterdeck.store.sql import BoundStatement
from tests.support.runtime import result_names

FAST_RETRY = Policy(max_attempts=3, base_ms=1, cap_ms=1)


@dataclass(frozen=True)
class Command:
    zone_id: str
    name: str = ""


class _FakeTransaction:
    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        return [[(0,)] for _ in statements]

    def write(self, statement: BoundStatement) -> None: ...


@dataclass
class FakeStore:
    """A store without a database. Each COMMIT raises the next of `failures`, until none is left."""

    failures: list[StoreError] = field(default_factory=list)
    transactions: int = 0
    kind: Literal["sqlite", "postgresql"] = "sqlite"

    async def transact(self, work: StoreWork[T], key: int | None = None, zones: Collection[str] = ()) -> T:
        self.transactions += 1
        outcome = await work(_FakeTransaction())
        if self.failures:
            raise self.failures.pop(0)
        return outcome

    async def read(self, work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
        return await work(_FakeTransaction())

    async def wait_until_ended(self, key: int) -> None: ...
    async def ping(self) -> None: ...
    async def close(self) -> None: ...


@dataclass
class FakeOperation:
    """The operation of the lane. Records each batch, and behaves as the test configures."""

    batches: list[list[Command]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    busy: dict[str, asyncio.Event] = field(default_factory=dict)
    """Locks by zone. A set event is a free lock."""
    error_for: Callable[[Command], Exception | None] = lambda command: None

    def __post_init__(self) -> None:
        self.gate.set()

    async def run(self, tx: Transaction, commands: Sequence[Command]) -> list[str | Problem | Busy]:
        self.batches.append(list(commands))
        await tx.read()
        await self.gate.wait()
        outcomes: list[str | Problem | Busy] = []
        for command in commands:
            if error := self.error_for(command):
                raise error
            lock = self.busy.get(command.zone_id)
            if lock and tx.wait_for_locks:
                await lock.wait()
            if lock and not lock.is_set():
                outcomes.append(BUSY)
            elif command.name == "refuse":
                outcomes.append(NotFound("no", "no"))
            else:
                outcomes.append(f"{command.zone_id}{command.name}")
        tx.emit(NewEvent("test", "z", "z", "z"))
        return outcomes


def lane_of(
    operation: FakeOperation,
    store: FakeStore | None = None,
    settings: EngineSettings | None = None,
    limits: LaneLimits | None = None,
) -> Lane[Command, str]:
    lanes = Lanes(
        Engine(store or FakeStore()), settings or EngineSettings(), limits=limits or LaneLimits(retry=FAST_RETRY)
    )
    return lanes.add_write_lane("test", operation.run)


async def outcomes(futures: Sequence[asyncio.Future[str]]) -> list[str]:
    """The outcome of each caller, within a bounded time."""
    async with asyncio.timeout(10):
        results = await asyncio.gather(*futures, return_exceptions=True)
    return [str(outcome) if isinstance(outcome, str) else result_names([outcome])[0] for outcome in results]


async def run_loop(iterations: int = 10) -> None:
    for _ in range(iterations):
        await asyncio.sleep(0)


def submit(lane: Lane[Command, str], zones: str) -> list[asyncio.Future[str]]:
    return [lane.submit(Command(zone, str(number))) for number, zone in enumerate(zones)]


# -- batches


async def test_idle_lane_commits_at_once_and_queued_commands_form_the_next_batch() -> None:
    operation = FakeOperation()
    operation.gate.clear()
    lane = lane_of(operation)
    first = submit(lane, "a")
    await run_loop()
    rest = submit(lane, "abcab")
    await run_loop()
    assert [len(batch) for batch in operation.batches] == [1]
    operation.gate.set()
    assert await outcomes(first + rest) == ["a0", "a0", "b1", "c2", "a3", "b4"]
    assert [len(batch) for batch in operation.batches] == [1, 5]


async def test_batch_is_never_larger_than_batch_max() -> None:
    operation = FakeOperation()
    lane = lane_of(operation, settings=EngineSettings(batch_max=4))
    await outcomes(submit(lane, "a" * 10))
    assert [len(batch) for batch in operation.batches] == [4, 4, 2]


async def test_single_command_of_another_zone_is_in_the_next_batch() -> None:
    operation = FakeOperation()
    lane = lane_of(operation, settings=EngineSettings(batch_max=10))
    many = submit(lane, "a" * 1_000)
    one = lane.submit(Command("b"))
    await outcomes([*many, one])
    assert [command.zone_id for command in operation.batches[0]].count("b") == 1


async def test_refusal_reaches_only_its_own_caller() -> None:
    lane = lane_of(FakeOperation())
    futures = [lane.submit(Command("a", name)) for name in ("1", "refuse", "3")]
    assert await outcomes(futures) == ["a1", "no", "a3"]


async def test_cancelled_caller_does_not_affect_the_others() -> None:
    operation = FakeOperation()
    operation.gate.clear()
    lane = lane_of(operation)
    futures = submit(lane, "aaa")
    await run_loop()
    futures[1].cancel()
    operation.gate.set()
    assert await outcomes([futures[0], futures[2]]) == ["a0", "a2"]
    await lane.drain()


# -- full queue


async def test_full_queue_returns_503_with_retry_after() -> None:
    operation = FakeOperation()
    operation.gate.clear()
    lane = lane_of(operation, settings=EngineSettings(queue_max=3))
    futures = submit(lane, "a")
    await run_loop()
    futures += submit(lane, "aaaaa")
    with pytest.raises(Unavailable) as refused:
        await futures[4]
    assert (refused.value.status, refused.value.code) == (503, "queue_full")
    assert refused.value.retry_after == 1
    other = lane.submit(Command("b"))
    operation.gate.set()
    results = await outcomes([*futures, other])
    assert results == ["a0", "a0", "a1", "queue_full", "queue_full", "queue_full", "b"], (
        "b replaced the newest command of a"
    )


# -- busy zones


async def test_busy_zone_does_not_delay_others_and_keeps_its_order() -> None:
    operation = FakeOperation(busy={"a": asyncio.Event()})
    lane = lane_of(operation)
    slow = submit(lane, "aaa")
    assert await outcomes(submit(lane, "bcb")) == ["b0", "c1", "b2"]
    more = submit(lane, "ab")
    assert await outcomes([more[1]]) == ["b1"]
    await run_loop(50)
    assert not any(future.done() for future in [*slow, more[0]])
    operation.busy["a"].set()
    assert await outcomes([*slow, more[0]]) == ["a0", "a1", "a2", "a0"]


async def test_more_busy_zones_than_waiters_are_all_served() -> None:
    zones = "abcdefghij"
    operation = FakeOperation(busy={zone: asyncio.Event() for zone in zones})
    lane = lane_of(operation, limits=LaneLimits(retry=FAST_RETRY, waiters_max=2))
    slow = submit(lane, zones * 3)
    assert await outcomes(submit(lane, "xyz")) == ["x0", "y1", "z2"]
    for lock in operation.busy.values():
        lock.set()
    assert len([result for result in await outcomes(slow) if result[0] in zones]) == 30
    await lane.drain()


async def test_zone_that_stays_busy_for_its_waiter_is_retried() -> None:
    operation = FakeOperation(busy={"a": asyncio.Event()})
    tries = 0

    async def busy_five_times(tx: Transaction, commands: Sequence[Command]) -> list[str | Problem | Busy]:
        nonlocal tries
        tries += 1
        await tx.read()
        return [BUSY if tries < 6 else "served" for _ in commands]

    lane = Lanes(Engine(FakeStore()), EngineSettings(), limits=LaneLimits(waiters_max=1)).add_write_lane(
        "test", busy_five_times
    )
    assert await outcomes([lane.submit(Command("a"))]) == ["served"]
    assert operation.batches == []


async def test_zone_that_is_busy_when_the_last_waiter_ends_gets_a_new_waiter() -> None:
    rounds = 0

    async def serve_waiters_only(tx: Transaction, commands: Sequence[Command]) -> list[str | Problem | Busy]:
        nonlocal rounds
        rounds += 1
        # The waiter is served. The pump, which runs when the waiter ends, finds the zone busy again.
        return ["served" if tx.wait_for_locks else BUSY for _ in commands]

    limits = LaneLimits(retry=FAST_RETRY, waiters_max=1, zone_batches_max=1)
    lane = Lanes(Engine(FakeStore()), EngineSettings(batch_max=1), limits=limits).add_write_lane(
        "test", serve_waiters_only
    )
    assert await outcomes(submit(lane, "aaaa")) == ["served"] * 4
    assert rounds == 8


async def test_commands_queued_while_a_waiter_waits_join_its_batch() -> None:
    operation = FakeOperation(busy={"a": asyncio.Event()})
    waiting, free = asyncio.Event(), asyncio.Event()

    async def wait_for_zone(zone_id: str) -> None:
        assert zone_id == "a"
        waiting.set()
        await free.wait()

    lanes = Lanes(
        Engine(FakeStore()), EngineSettings(), limits=LaneLimits(retry=FAST_RETRY), wait_for_zone=wait_for_zone
    )
    lane = lanes.add_write_lane("test", operation.run)
    first = [lane.submit(Command("a", "1"))]
    await waiting.wait()
    later = [lane.submit(Command("a", name)) for name in ("2", "3")]
    assert await outcomes([lane.submit(Command("b", "4"))]) == ["b4"], "other zones do not wait"
    operation.busy["a"].set()
    free.set()
    assert await outcomes([*first, *later]) == ["a1", "a2", "a3"]
    assert [command.name for command in operation.batches[-1]] == ["1", "2", "3"]


async def test_batch_waits_for_the_lock_if_wait_for_zone_fails() -> None:
    async def fail(zone_id: str) -> None:
        raise TransientError("55P03", "lock")

    operation = FakeOperation(busy={"a": asyncio.Event()})
    lane = Lanes(
        Engine(FakeStore()), EngineSettings(), limits=LaneLimits(retry=FAST_RETRY), wait_for_zone=fail
    ).add_write_lane("test", operation.run)
    futures = [lane.submit(Command("a", "1"))]
    asyncio.get_running_loop().call_soon(operation.busy["a"].set)
    assert await outcomes(futures) == ["a1"]


# -- failures


@pytest.mark.parametrize("failing", [{0}, {199}, {77}, {3, 150}, {100, 101}, set(range(0, 200, 40))])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContentError("22P05", "a value"), "invalid_value"),
        (ContentError("23505", "a constraint"), "conflict"),
        (ZeroDivisionError("a bug in the rules"), "internal_error"),
        (StoreError("42601", "a bug in a statement"), "internal_error"),
        (Conflict("raised", "a raised refusal"), "raised"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
async def test_failing_commands_in_a_batch_of_200_fail_alone(failing: set[int], error: Exception, code: str) -> None:
    operation = FakeOperation(error_for=lambda command: error if int(command.name) in failing else None)
    store = FakeStore()
    lane = lane_of(operation, store)
    results = await outcomes([lane.submit(Command("a", str(number))) for number in range(200)])
    assert results == [code if number in failing else f"a{number}" for number in range(200)]
    assert store.transactions <= 1 + 2 * 8 * len(failing)


async def test_missing_outcome_is_an_internal_error_for_that_command_only() -> None:
    async def drop_outcome(tx: Transaction, commands: Sequence[Command]) -> list[str | Problem | Busy]:
        return [command.zone_id for command in commands if command.name != "missing"]

    store = FakeStore()
    lane = Lanes(Engine(store), EngineSettings()).add_write_lane("test", drop_outcome)
    futures = [lane.submit(Command("a", name)) for name in ("1", "missing", "3")]
    assert await outcomes(futures) == ["a", "internal_error", "a"]


async def test_transient_error_is_retried() -> None:
    store = FakeStore(failures=[TransientError("40P01", "deadlock"), TransientError("55P03", "lock")])
    lane = lane_of(FakeOperation(), store)
    assert await outcomes(submit(lane, "ab")) == ["a0", "b1"]
    assert store.transactions == 3


@pytest.mark.parametrize("code", ["57014", "25P03"])
async def test_batch_that_times_out_is_halved_until_it_succeeds(code: str) -> None:
    def is_too_large(commands: Sequence[Command]) -> bool:
        return len(commands) > 3

    operation = FakeOperation()

    async def run_slowly(tx: Transaction, commands: Sequence[Command]) -> list[str | Problem | Busy]:
        if is_too_large(commands):
            raise TransientError(code, "took too long")
        return await operation.run(tx, commands)

    lane = Lanes(Engine(FakeStore()), EngineSettings(), limits=LaneLimits(retry=FAST_RETRY)).add_write_lane(
        "test", run_slowly
    )
    futures = [lane.submit(Command("a", str(number))) for number in range(16)]
    assert await outcomes(futures) == [f"a{number}" for number in range(16)]
    assert max(len(batch) for batch in operation.batches) == 2


async def test_persistent_transient_error_returns_503_and_the_lane_continues() -> None:
    store = FakeStore(failures=[TransientError("08006", "gone")] * 3)
    lane = lane_of(FakeOperation(), store)
    [one, two] = submit(lane, "ab")
    with pytest.raises(Unavailable) as refused:
        await one
    assert (refused.value.code, refused.value.retry_after) == ("database_unavailable", 1)
    assert await outcomes([two]) == ["database_unavailable"]
    assert store.transactions == 3
    assert await outcomes(submit(lane, "c")) == ["c0"]


async def test_commit_that_never_succeeds_is_retried_a_bounded_number_of_times() -> None:
    store = FakeStore(failures=[CommitUnknown("08006", "lost during COMMIT") for _ in range(100)])
    store.read = read_nothing  # type: ignore[method-assign]  # commits are not found from now on
    lane = lane_of(FakeOperation(), store)
    assert await outcomes(submit(lane, "a")) == ["database_unavailable"]
    assert store.transactions == 3


async def read_nothing(work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
    class EmptyTransaction(_FakeTransaction):
        async def read(self, *statements: BoundStatement) -> list[list[Row]]:
            return [[] for _ in statements]

    return await work(EmptyTransaction())


async def test_failing_after_commit_listener_does_not_change_the_outcomes() -> None:
    def failing_listener(events: Sequence[NewEvent]) -> None:
        raise ZeroDivisionError("a bug in a listener")

    store = FakeStore()
    engine = Engine(store, after_commit=failing_listener)
    lane = Lanes(engine, EngineSettings()).add_write_lane("test", FakeOperation().run)
    assert await outcomes(submit(lane, "ab")) == ["a0", "b1"]
    assert store.transactions == 1


# -- drain and observers


async def test_drain_waits_for_all_accepted_commands_including_busy_zones() -> None:
    operation = FakeOperation(busy={"a": asyncio.Event()})
    lane = lane_of(operation)
    futures = submit(lane, "ab")
    await outcomes([futures[1]])
    draining = asyncio.ensure_future(lane.drain())
    await run_loop(50)
    assert not draining.done()
    operation.busy["a"].set()
    async with asyncio.timeout(10):
        await draining
    assert all(future.done() for future in futures)
    await lane.drain()


class RecordingObserver:
    """An observer that records all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def on_batch(self, lane: str, size: int, seconds: float) -> None:
        self.calls.append((lane, size))

    def on_refused(self, lane: str, reason: str) -> None:
        self.calls.append((lane, reason))

    def on_retried(self, lane: str, code: str) -> None:
        self.calls.append((lane, code))


async def test_observer_is_called_for_every_batch_and_every_refusal() -> None:
    observer = RecordingObserver()
    lane = Lanes(Engine(FakeStore()), EngineSettings(), observer=observer).add_write_lane("test", FakeOperation().run)
    await outcomes([lane.submit(Command("a", name)) for name in ("1", "refuse", "3")])
    assert observer.calls == [("test", 3), ("test", "no")]


def test_internal_error_contains_no_detail_of_the_exception() -> None:
    problem = lane_problem(ZeroDivisionError("secret"))
    assert isinstance(problem, Internal)
    assert "secret" not in problem.detail


def lane_problem(error: Exception) -> Problem:
    async def submit_one() -> Problem:
        lane = lane_of(FakeOperation(error_for=lambda command: error))
        with pytest.raises(Problem) as raised:
            await lane.submit(Command("a"))
        return raised.value

    return asyncio.run(submit_one())
