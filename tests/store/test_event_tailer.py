"""The tailer: one reader of the log, and followers who hear of everything once and in order, wherever they stand."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from quarterdeck.engine.event_log import Event, EventFilter, NewEvent
from quarterdeck.engine.event_subscriber import QUEUE_EVENTS, REPLAY_PAGE, EndEvent, EventSubscriber
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
    """Stands before whatever the tailer reads: it can be shut, and it can fail."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.failures = 0
        self.reads = 0


@dataclass(frozen=True)
class Gated(Engine):
    gate: Gate = field(default_factory=Gate)

    async def read(
        self, operation: Callable[[Transaction], Awaitable[T]], *, zones: Collection[str] = (), for_writer: bool = False
    ) -> T:
        await self.gate.open.wait()
        self.gate.reads += 1
        if self.gate.failures:
            self.gate.failures -= 1
            raise TransientError("08006", "away")
        return await Engine.read(self, operation, zones=zones)


@dataclass
class Rig:
    keel: RuntimeHarness
    wakes: Wakeups
    gate: Gate
    tailer: EventTailer
    encoded: Counter[int]

    async def follow(self, after: int = 0, zone_id: str = ZONE, **narrow: object) -> EventSubscriber:
        wanted = build_struct(EventFilter, zone_id, after, **narrow)
        follower = EventSubscriber(self.tailer, self.keel.engine, wanted)
        await self.tailer.attach(follower)
        return follower

    async def joined(self, zone_id: str = ZONE, **narrow: object) -> EventSubscriber:
        """One who has seen everything there is by now."""
        follower = await self.follow(0, zone_id, **narrow)
        while not follower.is_live:
            await follower.catch_up()
        return follower

    async def emit(self, *subjects: str, zone_id: str = ZONE, kind: str = "a.b") -> None:
        async def operation(tx: Transaction) -> None:
            await tx.read()
            for subject in subjects:
                tx.emit(NewEvent(kind, zone_id, subject, "tester", to_state=STATE_AFTER_EVENT.get(kind)))

        await self.keel.engine.transact(operation, zones=[zone_id])

    async def retire(self, floor: int) -> None:
        """What retention does: the floor is raised, and what lies at or below it is gone."""
        self.keel.database.execute("update log_head set floor = ?", floor)
        self.keel.database.execute("delete from events where pos <= ?", floor)


@contextlib.asynccontextmanager
async def rigged(url: str, poll_seconds: float = NEVER) -> AsyncIterator[Rig]:
    wakes, gate, encoded = Wakeups(), Gate(), Counter[int]()

    def encode(event: Event) -> bytes:
        encoded[event.pos] += 1
        return b"%d\n" % event.pos

    async with open_runtime(url, RuntimeOptions(after_commit=lambda _: wakes.notify())) as keel:
        everywhere = Gated(keel.cross_zone_engine.store, gate=gate)
        tailer = EventTailer(everywhere, wakes, encode, poll_seconds)
        yield Rig(keel, wakes, gate, tailer, encoded)
        gate.open.set()
        await tailer.stop()


@pytest.fixture
async def tailer_harness(engine_url: str) -> AsyncIterator[Rig]:
    async with rigged(engine_url) as made:
        yield made


async def hear(follower: EventSubscriber, count: int) -> list[int]:
    """The positions of the next events, in the order in which they were handed out."""
    found: list[int] = []
    async with asyncio.timeout(LIMIT):
        while len(found) < count and follower.end_reason is None:
            data = follower.take() if follower.is_live else (await follower.catch_up())[0]
            found += map(int, data.split())
            if not data and follower.is_live:
                await follower.wait(asyncio.get_running_loop().time() + LIMIT)
    return found


# -- once and in order


async def test_what_is_committed_is_heard_once_and_in_order_by_everybody_whenever_they_came(
    tailer_harness: Rig,
) -> None:
    async def write(number: int) -> None:
        for turn in range(20):
            await tailer_harness.emit(*(f"{number}-{turn}-{i}" for i in range(number)))

    writing = asyncio.gather(*(write(number) for number in range(1, 6)))
    hearing = []
    for _ in range(10):
        hearing.append(asyncio.create_task(hear(await tailer_harness.follow(), 300)))
        await tailer_harness.emit("between")
    await writing
    everything = [event.pos for event in await tailer_harness.keel.read_log()]
    assert everything == list(range(1, 311))
    for heard in await asyncio.gather(*hearing):
        assert heard == everything[: len(heard)]
    late = await tailer_harness.joined()
    assert late.position == 310


async def test_a_follower_hears_of_its_own_zone_and_of_no_other(tailer_harness: Rig) -> None:
    own, other = await tailer_harness.joined(), await tailer_harness.joined(zone_id="other")
    await tailer_harness.emit("x")
    await tailer_harness.emit("y", zone_id="other")
    await tailer_harness.emit("z")
    assert await hear(own, 2) == [1, 3]
    assert await hear(other, 1) == [2]
    assert await hear(await tailer_harness.follow(), 2) == [1, 3]


async def test_types_and_subjects_narrow_what_is_heard_live_and_replayed(tailer_harness: Rig) -> None:
    narrows: list[dict[str, object]] = [{"types": ("a.b",)}, {"subject": "y"}, {"types": ("c.d",), "subject": "y"}]
    joined = [await tailer_harness.joined(ZONE, **narrow) for narrow in narrows]
    await tailer_harness.emit("x", "y")
    await tailer_harness.emit("x", "y", kind="c.d")
    expected = [[1, 2], [2, 4], [4]]
    for follower, narrow, positions in zip(joined, narrows, expected, strict=True):
        assert await hear(follower, len(positions)) == positions
        assert await hear(await tailer_harness.follow(0, ZONE, **narrow), len(positions)) == positions


async def test_whoever_waits_for_what_never_comes_knows_all_the_same_how_far_the_log_has_come(
    tailer_harness: Rig,
) -> None:
    follower, witness = await tailer_harness.joined(subject="nobody"), await tailer_harness.joined()
    await tailer_harness.emit(*"abc")
    await hear(witness, 3)
    assert (follower.take(), follower.position) == (b"", 3)


async def test_an_event_is_encoded_once_however_many_hear_it(tailer_harness: Rig) -> None:
    followers = [await tailer_harness.joined() for _ in range(20)]
    await tailer_harness.emit(*"abcde")
    for follower in followers:
        assert await hear(follower, 5) == [1, 2, 3, 4, 5]
    assert tailer_harness.encoded == Counter(range(1, 6))


@dataclass(frozen=True)
class Slow(Engine):
    """Whose pages have been read a while before they are in hand."""

    has_read: asyncio.Event = field(default_factory=asyncio.Event)
    hand_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(
        self, operation: Callable[[Transaction], Awaitable[T]], *, zones: Collection[str] = (), for_writer: bool = False
    ) -> T:
        found = await Engine.read(self, operation, zones=zones, for_writer=for_writer)
        self.has_read.set()
        await self.hand_over.wait()
        return found


async def test_what_is_committed_while_a_page_is_on_its_way_is_neither_lost_nor_doubled(tailer_harness: Rig) -> None:
    quick = await tailer_harness.joined()
    slow = Slow(tailer_harness.keel.store)
    follower = EventSubscriber(tailer_harness.tailer, slow, EventFilter(ZONE))
    await tailer_harness.tailer.attach(follower)
    tailer_harness.gate.open.clear()
    await tailer_harness.emit("in the page, and only then told of by the tailer")
    hearing = asyncio.create_task(hear(follower, 3))
    await slow.has_read.wait()
    await tailer_harness.emit("not in the page")
    tailer_harness.gate.open.set()
    assert await hear(quick, 2) == [1, 2]
    slow.hand_over.set()
    await tailer_harness.emit("after the page")
    assert await hearing == [1, 2, 3]


# -- falling behind


async def test_who_does_not_keep_up_is_sent_back_to_the_log_and_misses_nothing(tailer_harness: Rig) -> None:
    slow, quick = await tailer_harness.joined(), await tailer_harness.joined()
    total = 0
    for _ in range(5):
        await tailer_harness.emit(*map(str, range(QUEUE_EVENTS // 4 + 1)))
        total += QUEUE_EVENTS // 4 + 1
        assert len(await hear(quick, QUEUE_EVENTS // 4 + 1)) == QUEUE_EVENTS // 4 + 1
    assert quick.is_live
    assert not slow.is_live
    assert tailer_harness.tailer.fell_behind_count == 1
    assert slow._queue == [], "what stands in the log needs no room here"
    assert await hear(slow, total) == list(range(1, total + 1))
    assert slow.is_live
    await tailer_harness.emit("more")
    assert await hear(slow, 1) == [total + 1]


async def test_a_long_replay_is_read_in_pages_and_ends_joined(tailer_harness: Rig) -> None:
    total = REPLAY_PAGE * 3
    await tailer_harness.emit(*map(str, range(total)))
    follower = await tailer_harness.follow()
    page, _ = await follower.catch_up()
    assert len(page.split()) == REPLAY_PAGE
    assert not follower.is_live
    await tailer_harness.emit("meanwhile")
    assert await hear(follower, total + 1 - REPLAY_PAGE) == list(range(REPLAY_PAGE + 1, total + 2))


# -- the bounds of the log


@pytest.mark.parametrize("position", [0, 3, 11, 2**63 - 1])
async def test_a_position_outside_the_log_is_told_its_bounds_once_and_goes_on_from_the_floor(
    tailer_harness: Rig, position: int
) -> None:
    await tailer_harness.emit(*map(str, range(10)))
    await tailer_harness.retire(4)
    follower = await tailer_harness.follow(position)
    page, bounds = await follower.catch_up()
    assert page == b""
    assert bounds is not None
    assert (bounds.floor, bounds.head, follower.position) == (4, 10, 4)
    assert await hear(follower, 6) == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("position", [4, 7, 10])
async def test_a_position_at_the_floor_or_at_the_head_is_within_the_log(tailer_harness: Rig, position: int) -> None:
    await tailer_harness.emit(*map(str, range(10)))
    await tailer_harness.retire(4)
    follower = await tailer_harness.follow(position)
    page, bounds = await follower.catch_up()
    assert bounds is None
    assert [*map(int, page.split())] == list(range(position + 1, 11))


async def test_whom_retention_passes_by_while_the_database_is_away_is_told_so(tailer_harness: Rig) -> None:
    follower = await tailer_harness.joined()
    tailer_harness.gate.open.clear()
    await tailer_harness.emit(*map(str, range(10)))
    await tailer_harness.retire(6)
    tailer_harness.gate.open.set()
    async with asyncio.timeout(LIMIT):
        await follower.wait(asyncio.get_running_loop().time() + LIMIT)
    assert not follower.is_live
    _, bounds = await follower.catch_up()
    assert bounds is not None
    assert await hear(follower, 4) == [7, 8, 9, 10]


# -- the tailer's own life


async def test_the_log_is_read_only_while_somebody_follows(tailer_harness: Rig) -> None:
    await tailer_harness.emit("before")
    assert tailer_harness.gate.reads == 0
    follower = await tailer_harness.joined()
    tailer_harness.tailer.detach(follower)

    async def rests() -> bool:
        return tailer_harness.tailer._task is None

    await eventually(rests, "the tailer rests")
    reads = tailer_harness.gate.reads
    await tailer_harness.emit("unheard")
    assert tailer_harness.gate.reads == reads
    assert await hear(await tailer_harness.follow(1), 1) == [2]


async def test_what_no_wake_told_of_is_found_by_looking(engine_url: str) -> None:
    async with rigged(engine_url, poll_seconds=0.02) as rig, open_runtime(engine_url) as elsewhere:
        follower = await rig.joined()
        await elsewhere.put_zone("z2")
        await elsewhere.put_zone()
        assert await hear(follower, 1) == [2]


async def test_while_the_database_is_away_the_tailer_tries_again_and_its_followers_stay(tailer_harness: Rig) -> None:
    follower = await tailer_harness.joined()
    tailer_harness.gate.failures = 3
    await tailer_harness.emit("x")
    assert await hear(follower, 1) == [1]
    # A look that was under way when the database went may have found the first already; the second it has not.
    await tailer_harness.emit("x")
    assert await hear(follower, 1) == [2]
    assert tailer_harness.gate.failures == 0
    assert follower.is_live


async def test_nobody_is_let_in_while_it_cannot_be_known_where_the_log_ends(tailer_harness: Rig) -> None:
    tailer_harness.gate.failures = 1
    with pytest.raises(TransientError):
        await tailer_harness.follow()
    assert len(tailer_harness.tailer) == 0
    assert (await tailer_harness.joined()).is_live


async def test_a_watched_event_ends_its_follower_whichever_zone_it_is_of(tailer_harness: Rig) -> None:
    wanted = EventFilter(ZONE)
    watch = EndEvent("elsewhere", "session.terminate", "me")
    watching, other = (
        EventSubscriber(tailer_harness.tailer, tailer_harness.keel.engine, wanted, [watch]),
        await tailer_harness.joined(),
    )
    await tailer_harness.tailer.attach(watching)
    await tailer_harness.emit("me", zone_id="elsewhere", kind="session.spawn")
    await tailer_harness.emit("you", zone_id="elsewhere", kind="session.terminate")
    await tailer_harness.emit("me", kind="session.terminate")
    await hear(other, 1)
    assert watching.end_reason is None
    await tailer_harness.emit("me", zone_id="elsewhere", kind="session.terminate")
    async with asyncio.timeout(LIMIT):
        while watching.end_reason is None:
            await watching.wait(asyncio.get_running_loop().time() + LIMIT)
    assert watching.end_reason == "session.terminate"
    assert other.end_reason is None
