"""How a lane takes turns, on a store that is scripted: who shares a batch, who waits aside, who is answered what."""

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

QUICK = Policy(max_attempts=3, base_ms=1, cap_ms=1)


@dataclass(frozen=True)
class Job:
    zone_id: str
    name: str = ""


class _Tx:
    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        return [[(0,)] for _ in statements]

    def write(self, statement: BoundStatement) -> None: ...


@dataclass
class Scripted:
    """A store without a database: COMMIT meets the failures it is given, in turn, and then none."""

    failures: list[StoreError] = field(default_factory=list)
    transactions: int = 0
    kind: Literal["sqlite", "postgresql"] = "sqlite"

    async def transact(self, work: StoreWork[T], key: int | None = None, zones: Collection[str] = ()) -> T:
        self.transactions += 1
        outcome = await work(_Tx())
        if self.failures:
            raise self.failures.pop(0)
        return outcome

    async def read(self, work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
        return await work(_Tx())

    async def wait_until_ended(self, key: int) -> None: ...
    async def ping(self) -> None: ...
    async def close(self) -> None: ...


@dataclass
class Clerk:
    """The operation: remembers each batch, and does what the test says with it."""

    served: list[list[Job]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    busy: dict[str, asyncio.Event] = field(default_factory=dict)
    """By zone: who holds its lock. Set: it is free."""
    poison: Callable[[Job], Exception | None] = lambda job: None

    def __post_init__(self) -> None:
        self.gate.set()

    async def work(self, tx: Transaction, jobs: Sequence[Job]) -> list[str | Problem | Busy]:
        self.served.append(list(jobs))
        await tx.read()
        await self.gate.wait()
        outcomes: list[str | Problem | Busy] = []
        for job in jobs:
            if error := self.poison(job):
                raise error
            lock = self.busy.get(job.zone_id)
            if lock and tx.wait_for_locks:
                await lock.wait()
            if lock and not lock.is_set():
                outcomes.append(BUSY)
            elif job.name == "refuse":
                outcomes.append(NotFound("no", "no"))
            else:
                outcomes.append(f"{job.zone_id}{job.name}")
        tx.emit(NewEvent("test", "z", "z", "z"))
        return outcomes


def lane_of(
    clerk: Clerk,
    store: Scripted | None = None,
    settings: EngineSettings | None = None,
    patience: LaneLimits | None = None,
) -> Lane[Job, str]:
    lanes = Lanes(Engine(store or Scripted()), settings or EngineSettings(), limits=patience or LaneLimits(retry=QUICK))
    return lanes.add_write_lane("test", clerk.work)


async def outcomes(futures: Sequence[asyncio.Future[str]]) -> list[str]:
    """What each caller hears, within a bounded time: nobody may wait for ever."""
    async with asyncio.timeout(10):
        done = await asyncio.gather(*futures, return_exceptions=True)
    return [str(outcome) if isinstance(outcome, str) else result_names([outcome])[0] for outcome in done]


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def submit(lane: Lane[Job, str], zones: str) -> list[asyncio.Future[str]]:
    return [lane.submit(Job(zone, str(number))) for number, zone in enumerate(zones)]


# -- batches


async def test_an_idle_lane_commits_at_once_and_what_gathers_meanwhile_is_the_next_batch() -> None:
    clerk = Clerk()
    clerk.gate.clear()
    lane = lane_of(clerk)
    first = submit(lane, "a")
    await turns()
    rest = submit(lane, "abcab")
    await turns()
    assert [len(batch) for batch in clerk.served] == [1]
    clerk.gate.set()
    assert await outcomes(first + rest) == ["a0", "a0", "b1", "c2", "a3", "b4"]
    assert [len(batch) for batch in clerk.served] == [1, 5]


async def test_a_batch_is_never_larger_than_its_bound() -> None:
    clerk = Clerk()
    lane = lane_of(clerk, settings=EngineSettings(batch_max=4))
    await outcomes(submit(lane, "a" * 10))
    assert [len(batch) for batch in clerk.served] == [4, 4, 2]


async def test_one_command_of_another_zone_stands_in_the_very_next_batch() -> None:
    clerk = Clerk()
    lane = lane_of(clerk, settings=EngineSettings(batch_max=10))
    many = submit(lane, "a" * 1_000)
    one = lane.submit(Job("b"))
    await outcomes([*many, one])
    assert [job.zone_id for job in clerk.served[0]].count("b") == 1


async def test_refusals_are_their_own_callers() -> None:
    lane = lane_of(Clerk())
    futures = [lane.submit(Job("a", name)) for name in ("1", "refuse", "3")]
    assert await outcomes(futures) == ["a1", "no", "a3"]


async def test_a_caller_who_goes_away_costs_the_others_nothing() -> None:
    clerk = Clerk()
    clerk.gate.clear()
    lane = lane_of(clerk)
    futures = submit(lane, "aaa")
    await turns()
    futures[1].cancel()
    clerk.gate.set()
    assert await outcomes([futures[0], futures[2]]) == ["a0", "a2"]
    await lane.drain()


# -- the door


async def test_a_full_queue_answers_503_with_a_time_to_come_back() -> None:
    clerk = Clerk()
    clerk.gate.clear()
    lane = lane_of(clerk, settings=EngineSettings(queue_max=3))
    futures = submit(lane, "a")
    await turns()
    futures += submit(lane, "aaaaa")
    with pytest.raises(Unavailable) as refused:
        await futures[4]
    assert (refused.value.status, refused.value.code) == (503, "queue_full")
    assert refused.value.retry_after == 1
    other = lane.submit(Job("b"))
    clerk.gate.set()
    answers = await outcomes([*futures, other])
    assert answers == ["a0", "a0", "a1", "queue_full", "queue_full", "queue_full", "b"], "b took the newest a's place"


# -- busy zones


async def test_a_busy_zone_stands_aside_and_its_commands_keep_their_order() -> None:
    clerk = Clerk(busy={"a": asyncio.Event()})
    lane = lane_of(clerk)
    slow = submit(lane, "aaa")
    assert await outcomes(submit(lane, "bcb")) == ["b0", "c1", "b2"]
    more = submit(lane, "ab")
    assert await outcomes([more[1]]) == ["b1"]
    await turns(50)
    assert not any(future.done() for future in [*slow, more[0]])
    clerk.busy["a"].set()
    assert await outcomes([*slow, more[0]]) == ["a0", "a1", "a2", "a0"]


async def test_more_busy_zones_than_waiters_are_all_served_in_the_end() -> None:
    zones = "abcdefghij"
    clerk = Clerk(busy={zone: asyncio.Event() for zone in zones})
    lane = lane_of(clerk, patience=LaneLimits(retry=QUICK, waiters_max=2))
    slow = submit(lane, zones * 3)
    assert await outcomes(submit(lane, "xyz")) == ["x0", "y1", "z2"]
    for lock in clerk.busy.values():
        lock.set()
    assert len([answer for answer in await outcomes(slow) if answer[0] in zones]) == 30
    await lane.drain()


async def test_a_zone_that_is_busy_even_for_its_waiter_is_tried_again_and_not_forgotten() -> None:
    clerk = Clerk(busy={"a": asyncio.Event()})
    tries = 0

    async def passed_over(tx: Transaction, jobs: Sequence[Job]) -> list[str | Problem | Busy]:
        nonlocal tries
        tries += 1
        await tx.read()
        return [BUSY if tries < 6 else "at last" for _ in jobs]

    lane = Lanes(Engine(Scripted()), EngineSettings(), limits=LaneLimits(waiters_max=1)).add_write_lane(
        "test", passed_over
    )
    assert await outcomes([lane.submit(Job("a"))]) == ["at last"]
    assert clerk.served == []


async def test_a_zone_put_aside_while_the_last_waiter_leaves_finds_another() -> None:
    rounds = 0

    async def busy_twice(tx: Transaction, jobs: Sequence[Job]) -> list[str | Problem | Busy]:
        nonlocal rounds
        rounds += 1
        # Whoever waits is served; the pump, which the leaving waiter wakes, finds the zone busy again at once.
        return ["served" if tx.wait_for_locks else BUSY for _ in jobs]

    patience = LaneLimits(retry=QUICK, waiters_max=1, zone_batches_max=1)
    lane = Lanes(Engine(Scripted()), EngineSettings(batch_max=1), limits=patience).add_write_lane("test", busy_twice)
    assert await outcomes(submit(lane, "aaaa")) == ["served"] * 4
    assert rounds == 8


async def test_what_gathers_while_a_waiter_stands_before_the_lock_goes_into_its_batch() -> None:
    clerk = Clerk(busy={"a": asyncio.Event()})
    waiting, free = asyncio.Event(), asyncio.Event()

    async def turnstile(zone_id: str) -> None:
        assert zone_id == "a"
        waiting.set()
        await free.wait()

    lanes = Lanes(Engine(Scripted()), EngineSettings(), limits=LaneLimits(retry=QUICK), wait_for_zone=turnstile)
    lane = lanes.add_write_lane("test", clerk.work)
    first = [lane.submit(Job("a", "1"))]
    await waiting.wait()
    later = [lane.submit(Job("a", name)) for name in ("2", "3")]
    assert await outcomes([lane.submit(Job("b", "4"))]) == ["b4"], "nobody else waits for it"
    clerk.busy["a"].set()
    free.set()
    assert await outcomes([*first, *later]) == ["a1", "a2", "a3"]
    assert [job.name for job in clerk.served[-1]] == ["1", "2", "3"]


async def test_a_turnstile_that_fails_leaves_it_to_the_batch_to_wait() -> None:
    async def stuck(zone_id: str) -> None:
        raise TransientError("55P03", "lock")

    clerk = Clerk(busy={"a": asyncio.Event()})
    lane = Lanes(
        Engine(Scripted()), EngineSettings(), limits=LaneLimits(retry=QUICK), wait_for_zone=stuck
    ).add_write_lane("test", clerk.work)
    asked = [lane.submit(Job("a", "1"))]
    asyncio.get_running_loop().call_soon(clerk.busy["a"].set)
    assert await outcomes(asked) == ["a1"]


# -- failures


@pytest.mark.parametrize("guilty", [{0}, {199}, {77}, {3, 150}, {100, 101}, set(range(0, 200, 40))])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContentError("22P05", "a value"), "invalid_value"),
        (ContentError("23505", "a constraint"), "conflict"),
        (ZeroDivisionError("a bug in the rules"), "internal_error"),
        (StoreError("42601", "a bug in a statement"), "internal_error"),
        (Conflict("raised", "a refusal that was raised"), "raised"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
async def test_poisoned_commands_in_a_batch_of_200_fail_alone(guilty: set[int], error: Exception, code: str) -> None:
    clerk = Clerk(poison=lambda job: error if int(job.name) in guilty else None)
    store = Scripted()
    lane = lane_of(clerk, store)
    answers = await outcomes([lane.submit(Job("a", str(number))) for number in range(200)])
    assert answers == [code if number in guilty else f"a{number}" for number in range(200)]
    assert store.transactions <= 1 + 2 * 8 * len(guilty)


async def test_an_operation_that_loses_an_outcome_leaves_nobody_waiting_and_commits_nothing() -> None:
    async def forgetful(tx: Transaction, jobs: Sequence[Job]) -> list[str | Problem | Busy]:
        return [job.zone_id for job in jobs if job.name != "lost"]

    store = Scripted()
    lane = Lanes(Engine(store), EngineSettings()).add_write_lane("test", forgetful)
    futures = [lane.submit(Job("a", name)) for name in ("1", "lost", "3")]
    assert await outcomes(futures) == ["a", "internal_error", "a"]


async def test_what_is_transient_is_tried_again_and_succeeds() -> None:
    store = Scripted(failures=[TransientError("40P01", "deadlock"), TransientError("55P03", "lock")])
    lane = lane_of(Clerk(), store)
    assert await outcomes(submit(lane, "ab")) == ["a0", "b1"]
    assert store.transactions == 3


@pytest.mark.parametrize("code", ["57014", "25P03"])
async def test_a_batch_that_takes_too_long_is_halved_until_it_does_not(code: str) -> None:
    def heavy(jobs: Sequence[Job]) -> bool:
        return len(jobs) > 3

    clerk = Clerk()

    async def slow(tx: Transaction, jobs: Sequence[Job]) -> list[str | Problem | Busy]:
        if heavy(jobs):
            raise TransientError(code, "took too long")
        return await clerk.work(tx, jobs)

    lane = Lanes(Engine(Scripted()), EngineSettings(), limits=LaneLimits(retry=QUICK)).add_write_lane("test", slow)
    futures = [lane.submit(Job("a", str(number))) for number in range(16)]
    assert await outcomes(futures) == [f"a{number}" for number in range(16)]
    assert max(len(batch) for batch in clerk.served) == 2


async def test_what_stays_transient_is_answered_503_after_so_many_tries_and_the_lane_goes_on() -> None:
    store = Scripted(failures=[TransientError("08006", "gone")] * 3)
    lane = lane_of(Clerk(), store)
    [one, two] = submit(lane, "ab")
    with pytest.raises(Unavailable) as refused:
        await one
    assert (refused.value.code, refused.value.retry_after) == ("database_unavailable", 1)
    assert await outcomes([two]) == ["database_unavailable"]
    assert store.transactions == 3
    assert await outcomes(submit(lane, "c")) == ["c0"]


async def test_a_commit_that_never_happens_is_not_tried_for_ever() -> None:
    store = Scripted(failures=[CommitUnknown("08006", "lost during COMMIT") for _ in range(100)])
    store.read = no_witness  # type: ignore[method-assign]  # from here on it forgets what was committed
    lane = lane_of(Clerk(), store)
    assert await outcomes(submit(lane, "a")) == ["database_unavailable"]
    assert store.transactions == 3


async def no_witness(work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
    class Nothing(_Tx):
        async def read(self, *statements: BoundStatement) -> list[list[Row]]:
            return [[] for _ in statements]

    return await work(Nothing())


async def test_a_listener_that_fails_after_the_commit_changes_nobodys_answer() -> None:
    def broken(events: Sequence[NewEvent]) -> None:
        raise ZeroDivisionError("a bug in a listener")

    store = Scripted()
    engine = Engine(store, after_commit=broken)
    lane = Lanes(engine, EngineSettings()).add_write_lane("test", Clerk().work)
    assert await outcomes(submit(lane, "ab")) == ["a0", "b1"]
    assert store.transactions == 1


# -- rest


async def test_draining_waits_for_what_was_let_in_also_for_what_stands_aside() -> None:
    clerk = Clerk(busy={"a": asyncio.Event()})
    lane = lane_of(clerk)
    futures = submit(lane, "ab")
    await outcomes([futures[1]])
    draining = asyncio.ensure_future(lane.drain())
    await turns(50)
    assert not draining.done()
    clerk.busy["a"].set()
    async with asyncio.timeout(10):
        await draining
    assert all(future.done() for future in futures)
    await lane.drain()


class Ears:
    """An observer that writes everything down."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []

    def on_batch(self, lane: str, size: int, seconds: float) -> None:
        self.heard.append((lane, size))

    def on_refused(self, lane: str, reason: str) -> None:
        self.heard.append((lane, reason))

    def on_retried(self, lane: str, code: str) -> None:
        self.heard.append((lane, code))


async def test_observers_hear_of_every_batch_and_every_refusal() -> None:
    ears = Ears()
    lane = Lanes(Engine(Scripted()), EngineSettings(), observer=ears).add_write_lane("test", Clerk().work)
    await outcomes([lane.submit(Job("a", name)) for name in ("1", "refuse", "3")])
    assert ears.heard == [("test", 3), ("test", "no")]


def test_what_a_caller_is_told_of_a_defect_holds_no_detail() -> None:
    told = lane_problem(ZeroDivisionError("secret"))
    assert isinstance(told, Internal)
    assert "secret" not in told.detail


def lane_problem(error: Exception) -> Problem:
    async def met() -> Problem:
        lane = lane_of(Clerk(poison=lambda job: error))
        with pytest.raises(Problem) as raised:
            await lane.submit(Job("a"))
        return raised.value

    return asyncio.run(met())
