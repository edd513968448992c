"""The event tailer: one reader of the log per process, and subscribers that get each event once and in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from quarterdeck.engine.event_log import Event, EventFilter, NewEvent
from quarterdeck.engine.event_subscriber import QUEUE_EVENTS_MAX, REPLAY_PAGE_EVENTS, EndEvent, EventSubscriber
from quarterdeck.engine.event_tailer import EventTailer
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import TransientError
from tests.support.builders import STATE_AFTER_EVENT, ZONE
from tests.support.eventually import eventually
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime
from tests.support.structs import build_struct

T = TypeVar("T")
NEVER = 3_600.0
LIMIT = 20.0


class Gate:
    """Blocks or fails the reads of the tailer."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._read_lock = asyncio.Lock()
        self.failures = 0
        self.reads = 0

    async def close(self) -> None:
        """Block the reads from now on. A read that has started ends first, so it sees nothing that is written later."""
        self._is_open.clear()
        async with self._read_lock:
            pass

    def open(self) -> None:
        self._is_open.set()

    @contextlib.asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        await self._is_open.wait()
        async with self._read_lock:
            self.reads += 1
            if self.failures:
                self.failures -= 1
                raise TransientError("08006", "unavailable")
            yield


@dataclass(frozen=True)
class GatedEngine(Engine):
    gate: Gate = field(default_factory=Gate)

    async def read(
        self, operation: Callable[[Transaction], Awaitable[T]], *, zones: Collection[str] = (), for_writer: bool = False
    ) -> T:
        async with self.gate.passed():
            return await Engine.read(self, operation, zones=zones)


@dataclass
class TailerHarness:
    runtime: RuntimeHarness
    wakeups: Wakeups
    gate: Gate
    tailer: EventTailer
    encoded: Counter[int]

    async def subscribe(self, after: int = 0, zone_id: str = ZONE, **filters: object) -> EventSubscriber:
        event_filter = build_struct(EventFilter, zone_id, after, **filters)
        subscriber = EventSubscriber(self.tailer, self.runtime.engine, event_filter)
        await self.tailer.attach(subscriber)
        return subscriber

    async def subscribe_live(self, zone_id: str = ZONE, **filters: object) -> EventSubscriber:
        """A live subscriber that has read the whole log."""
        subscriber = await self.subscribe(0, zone_id, **filters)
        while not subscriber.is_live:
            await subscriber.catch_up()
        return subscriber

    async def emit(self, *subjects: str, zone_id: str = ZONE, event_type: str = "a.b") -> None:
        async def operation(tx: Transaction) -> None:
            await tx.read()
            for subject in subjects:
                to_state = STATE_AFTER_EVENT.get(event_type)
                tx.emit(NewEvent(event_type, zone_id, subject, "tester", None, to_state, '{"reason":"requested"}'))

        await self.runtime.engine.transact(operation, zones=[zone_id])

    async def delete_events_to(self, floor: int) -> None:
        """Raise the floor and delete the events up to it, as retention does."""
        self.runtime.database.execute("update log_head set floor = ?", floor)
        self.runtime.database.execute("delete from events where pos <= ?", floor)


@contextlib.asynccontextmanager
async def open_tailer(url: str, poll_seconds: float = NEVER) -> AsyncIterator[TailerHarness]:
    wakeups, gate, encoded = Wakeups(), Gate(), Counter[int]()

    def encode(event: Event) -> bytes:
        encoded[event.pos] += 1
        return b"%d\n" % event.pos

    async with open_runtime(url, RuntimeOptions(after_commit=lambda _: wakeups.notify())) as runtime:
        cross_zone_engine = GatedEngine(runtime.cross_zone_engine.store, gate=gate)
        tailer = EventTailer(cross_zone_engine, wakeups, encode, poll_seconds)
        yield TailerHarness(runtime, wakeups, gate, tailer, encoded)
        gate.open()
        await tailer.stop()


@pytest.fixture
async def tailer_harness(engine_url: str) -> AsyncIterator[TailerHarness]:
    async with open_tailer(engine_url) as harness:
        yield harness


async def receive(subscriber: EventSubscriber, count: int) -> list[int]:
    """The positions of the next events, in the order of delivery."""
    positions: list[int] = []
    async with asyncio.timeout(LIMIT):
        while len(positions) < count and subscriber.end_reason is None:
            data = subscriber.take() if subscriber.is_live else (await subscriber.catch_up())[0]
            positions += map(int, data.split())
            if not data and subscriber.is_live:
                await subscriber.wait(asyncio.get_running_loop().time() + LIMIT)
    return positions


# -- exactly once and in order


async def test_every_subscriber_gets_each_event_once_and_in_order(tailer_harness: TailerHarness) -> None:
    async def write(number: int) -> None:
        for round_number in range(20):
            await tailer_harness.emit(*(f"{number}-{round_number}-{i}" for i in range(number)))

    writing = asyncio.gather(*(write(number) for number in range(1, 6)))
    receiving = []
    for _ in range(10):
        receiving.append(asyncio.create_task(receive(await tailer_harness.subscribe(), 300)))
        await tailer_harness.emit("between")
    await writing
    all_positions = [event.pos for event in await tailer_harness.runtime.read_log()]
    assert all_positions == list(range(1, 311))
    for received in await asyncio.gather(*receiving):
        assert received == all_positions[: len(received)]
    late = await tailer_harness.subscribe_live()
    assert late.position == 310


async def test_subscriber_gets_events_of_its_own_zone_only(tailer_harness: TailerHarness) -> None:
    own, other = await tailer_harness.subscribe_live(), await tailer_harness.subscribe_live(zone_id="other")
    await tailer_harness.emit("x")
    await tailer_harness.emit("y", zone_id="other")
    await tailer_harness.emit("z")
    assert await receive(own, 2) == [1, 3]
    assert await receive(other, 1) == [2]
    assert await receive(await tailer_harness.subscribe(), 2) == [1, 3]


async def test_types_and_subjects_filter_live_and_replayed_events(tailer_harness: TailerHarness) -> None:
    filter_sets: list[dict[str, object]] = [{"types": ("a.b",)}, {"subject": "y"}, {"types": ("c.d",), "subject": "y"}]
    live = [await tailer_harness.subscribe_live(ZONE, **filters) for filters in filter_sets]
    await tailer_harness.emit("x", "y")
    await tailer_harness.emit("x", "y", event_type="c.d")
    expected = [[1, 2], [2, 4], [4]]
    for subscriber, filters, positions in zip(live, filter_sets, expected, strict=True):
        assert await receive(subscriber, len(positions)) == positions
        assert await receive(await tailer_harness.subscribe(0, ZONE, **filters), len(positions)) == positions


async def test_position_advances_without_matching_events(tailer_harness: TailerHarness) -> None:
    subscriber, other = await tailer_harness.subscribe_live(subject="unknown"), await tailer_harness.subscribe_live()
    await tailer_harness.emit(*"abc")
    await receive(other, 3)
    assert (subscriber.take(), subscriber.position) == (b"", 3)


async def test_event_is_encoded_once_for_all_subscribers(tailer_harness: TailerHarness) -> None:
    subscribers = [await tailer_harness.subscribe_live() for _ in range(20)]
    await tailer_harness.emit(*"abcde")
    for subscriber in subscribers:
        assert await receive(subscriber, 5) == [1, 2, 3, 4, 5]
    assert tailer_harness.encoded == Counter(range(1, 6))


@dataclass(frozen=True)
class SlowEngine(Engine):
    """Returns each page only when `may_return` is set, some time after it was read."""

    has_read: asyncio.Event = field(default_factory=asyncio.Event)
    may_return: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(
        self, operation: Callable[[Transaction], Awaitable[T]], *, zones: Collection[str] = (), for_writer: bool = False
    ) -> T:
        found = await Engine.read(self, operation, zones=zones, for_writer=for_writer)
        self.has_read.set()
        await self.may_return.wait()
        return found


async def test_events_committed_during_a_page_read_are_neither_lost_nor_duplicated(
    tailer_harness: TailerHarness,
) -> None:
    quick = await tailer_harness.subscribe_live()
    slow = SlowEngine(tailer_harness.runtime.store)
    subscriber = EventSubscriber(tailer_harness.tailer, slow, EventFilter(ZONE))
    await tailer_harness.tailer.attach(subscriber)
    await tailer_harness.gate.close()
    await tailer_harness.emit("in the page, and later delivered by the tailer")
    receiving = asyncio.create_task(receive(subscriber, 3))
    await slow.has_read.wait()
    await tailer_harness.emit("not in the page")
    tailer_harness.gate.open()
    assert await receive(quick, 2) == [1, 2]
    slow.may_return.set()
    await tailer_harness.emit("after the page")
    assert await receiving == [1, 2, 3]


# -- slow subscribers


async def test_slow_subscriber_falls_back_to_the_log_and_misses_nothing(tailer_harness: TailerHarness) -> None:
    slow, quick = await tailer_harness.subscribe_live(), await tailer_harness.subscribe_live()
    total = 0
    for _ in range(5):
        await tailer_harness.emit(*map(str, range(QUEUE_EVENTS_MAX // 4 + 1)))
        total += QUEUE_EVENTS_MAX // 4 + 1
        assert len(await receive(quick, QUEUE_EVENTS_MAX // 4 + 1)) == QUEUE_EVENTS_MAX // 4 + 1
    assert quick.is_live
    assert not slow.is_live
    assert tailer_harness.tailer.fell_behind_count == 1
    assert slow._queue == [], "the log has these events, so the queue is dropped"
    assert await receive(slow, total) == list(range(1, total + 1))
    assert slow.is_live
    await tailer_harness.emit("more")
    assert await receive(slow, 1) == [total + 1]


async def test_long_replay_is_read_in_pages_and_ends_live(tailer_harness: TailerHarness) -> None:
    total = REPLAY_PAGE_EVENTS * 3
    await tailer_harness.emit(*map(str, range(total)))
    subscriber = await tailer_harness.subscribe()
    page, _ = await subscriber.catch_up()
    assert len(page.split()) == REPLAY_PAGE_EVENTS
    assert not subscriber.is_live
    await tailer_harness.emit("meanwhile")
    assert await receive(subscriber, total + 1 - REPLAY_PAGE_EVENTS) == list(range(REPLAY_PAGE_EVENTS + 1, total + 2))


# -- bounds of the log


@pytest.mark.parametrize("position", [0, 3, 11, 2**63 - 1])
async def test_position_outside_the_log_gets_its_bounds_once_and_continues_at_the_floor(
    tailer_harness: TailerHarness, position: int
) -> None:
    await tailer_harness.emit(*map(str, range(10)))
    await tailer_harness.delete_events_to(4)
    subscriber = await tailer_harness.subscribe(position)
    page, bounds = await subscriber.catch_up()
    assert page == b""
    assert bounds is not None
    assert (bounds.floor, bounds.head, subscriber.position) == (4, 10, 4)
    assert await receive(subscriber, 6) == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("position", [4, 7, 10])
async def test_positions_from_floor_to_head_are_inside_the_log(tailer_harness: TailerHarness, position: int) -> None:
    await tailer_harness.emit(*map(str, range(10)))
    await tailer_harness.delete_events_to(4)
    subscriber = await tailer_harness.subscribe(position)
    page, bounds = await subscriber.catch_up()
    assert bounds is None
    assert [*map(int, page.split())] == list(range(position + 1, 11))


async def test_subscriber_overtaken_by_retention_gets_the_bounds(tailer_harness: TailerHarness) -> None:
    subscriber = await tailer_harness.subscribe_live()
    await tailer_harness.gate.close()
    await tailer_harness.emit(*map(str, range(10)))
    await tailer_harness.delete_events_to(6)
    tailer_harness.gate.open()
    async with asyncio.timeout(LIMIT):
        await subscriber.wait(asyncio.get_running_loop().time() + LIMIT)
    assert not subscriber.is_live
    _, bounds = await subscriber.catch_up()
    assert bounds is not None
    assert await receive(subscriber, 4) == [7, 8, 9, 10]


# -- lifecycle of the tailer


async def test_log_is_read_only_while_there_are_subscribers(tailer_harness: TailerHarness) -> None:
    await tailer_harness.emit("before")
    assert tailer_harness.gate.reads == 0
    subscriber = await tailer_harness.subscribe_live()
    tailer_harness.tailer.detach(subscriber)

    async def has_stopped() -> bool:
        return not tailer_harness.tailer.is_running

    await eventually(has_stopped, "the tailer stopped")
    reads = tailer_harness.gate.reads
    await tailer_harness.emit("without subscribers")
    assert tailer_harness.gate.reads == reads
    assert await receive(await tailer_harness.subscribe(1), 1) == [2]


async def test_polling_finds_events_without_a_wakeup(engine_url: str) -> None:
    async with open_tailer(engine_url, poll_seconds=0.02) as harness, open_runtime(engine_url) as other_process:
        subscriber = await harness.subscribe_live()
        await other_process.put_zone("z2")
        await other_process.put_zone()
        assert await receive(subscriber, 1) == [2]


async def test_tailer_retries_during_an_outage_and_keeps_its_subscribers(tailer_harness: TailerHarness) -> None:
    subscriber = await tailer_harness.subscribe_live()
    tailer_harness.gate.failures = 3
    await tailer_harness.emit("x")
    assert await receive(subscriber, 1) == [1]
    # A read that was running before the failures may have found the first event, but not the second.
    await tailer_harness.emit("x")
    assert await receive(subscriber, 1) == [2]
    assert tailer_harness.gate.failures == 0
    assert subscriber.is_live


async def test_subscribing_fails_while_the_head_of_the_log_is_unknown(tailer_harness: TailerHarness) -> None:
    tailer_harness.gate.failures = 1
    with pytest.raises(TransientError):
        await tailer_harness.subscribe()
    assert len(tailer_harness.tailer) == 0
    assert (await tailer_harness.subscribe_live()).is_live


async def test_end_event_ends_its_subscriber_in_any_zone(tailer_harness: TailerHarness) -> None:
    event_filter = EventFilter(ZONE)
    watch = EndEvent("other-zone", "session.terminate", "watched")
    watching, other = (
        EventSubscriber(tailer_harness.tailer, tailer_harness.runtime.engine, event_filter, [watch]),
        await tailer_harness.subscribe_live(),
    )
    await tailer_harness.tailer.attach(watching)
    await tailer_harness.emit("watched", zone_id="other-zone", event_type="session.spawn")
    await tailer_harness.emit("other", zone_id="other-zone", event_type="session.terminate")
    await tailer_harness.emit("watched", event_type="session.terminate")
    await receive(other, 1)
    assert watching.end_reason is None
    await tailer_harness.emit("watched", zone_id="other-zone", event_type="session.terminate")
    async with asyncio.timeout(LIMIT):
        while watching.end_reason is None:
            await watching.wait(asyncio.get_running_loop().time() + LIMIT)
    assert watching.end_reason == "session.terminate"
    assert other.end_reason is None
