"""Slots in a real Redis: what the database says, soon after the commit; put right whatever was done to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from quarterdeck.bus.redis.client import connect
from quarterdeck.bus.redis.interfaces import BusUnavailable, SlotCounter
from quarterdeck.bus.redis.slots import RedisSlotWriter, position_key, slot_key
from quarterdeck.domain.sessions.model import Session, Terminate
from quarterdeck.domain.sessions.operations import SlotCounts
from quarterdeck.domain.sessions.sweeps import CountReconciler as Counted
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.mirrors import slots
from quarterdeck.engine.mirrors.slots import SLOTS, SlotMirror, SlotReconciler
from quarterdeck.engine.sweeps import SweepRunner
from tests.support.builders import ZONE, admin, spawn_command
from tests.support.eventually import eventually
from tests.support.redis import DirectRedis, RedisServer
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime, result_names


@dataclass
class Kept:
    """A keel, and the slots of its zones in a Redis."""

    keel: RuntimeHarness
    redis: DirectRedis
    keeper: SlotMirror
    reconciler: SlotReconciler
    board: RedisSlotWriter

    def shown(self, zone_id: str = ZONE) -> str | None:
        found = self.redis.client.get(slot_key(zone_id))
        return None if found is None else str(found)

    async def compare(self) -> int:
        return await SweepRunner([self.reconciler.sweep()]).run_now(SLOTS)

    def pass_time(self) -> None:
        """Lets everything that is in the log have happened long ago."""
        self.keel.database.execute("update events set at = at - 60000")


@pytest.fixture
async def slot_harness(engine_url: str, redis: DirectRedis) -> AsyncIterator[Kept]:
    heard: list[SlotMirror] = []

    def after_commit(events: Sequence[NewEvent]) -> None:
        for keeper in heard:
            keeper.on_commit(events)

    async with open_runtime(engine_url, RuntimeOptions(after_commit=after_commit)) as keel:
        board = RedisSlotWriter(connect(redis.url))
        counts = SlotCounts(Limits())
        keeper = SlotMirror(keel.cross_zone_engine, counts, board)
        heard.append(keeper)
        await keel.put_zone()
        yield Kept(keel, redis, keeper, SlotReconciler(keel.cross_zone_engine, counts, board, 10_000), board)
        await board.close()


async def family(keel: RuntimeHarness, children: int) -> list[Session]:
    root = await keel.spawn()
    return [root, *[await keel.spawn(parent_id=root.id) for _ in range(children)]]


# -- kept


async def test_children_take_slots_and_roots_take_none(slot_harness: Kept) -> None:
    made = await family(slot_harness.keel, 3)
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "3"
    await slot_harness.keel.terminate(made[1])
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "2"
    await slot_harness.keel.terminate(made[0])
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "0"
    assert await slot_harness.compare() == 0


async def test_a_count_that_was_set_right_is_shown_as_it_is_and_is_no_repair(slot_harness: Kept) -> None:
    await family(slot_harness.keel, 3)
    slot_harness.keel.database.execute("update admission_counts set live = 1 where scope = 'concurrent'")
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "1"
    await Counted(slot_harness.keel.cross_zone_engine, slot_harness.keel.repair_counts_lane.submit).run_once(1_000)
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "3"
    assert await slot_harness.compare() == 0


async def test_a_suspended_child_keeps_its_slot_and_a_stamped_one_does_not(slot_harness: Kept, engine_url: str) -> None:
    made = await family(slot_harness.keel, 4)
    await slot_harness.keel.suspend(made[1])
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "4"
    async with open_runtime(engine_url, RuntimeOptions(chunk=1, after_commit=slot_harness.keeper.on_commit)) as other:
        await other.terminate_lane.submit(Terminate(ZONE, made[0].id, "x", admin()))
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "0"


async def test_every_zone_has_its_own_whatever_it_is_called(slot_harness: Kept) -> None:
    names = ["a", "a:b", "slots", "slots-position:a", "quarterdeck:slots:a"]
    for number, name in enumerate(names, 1):
        await slot_harness.keel.put_zone(name)
        root = await slot_harness.keel.spawn(name)
        for _ in range(number):
            await slot_harness.keel.spawn(name, parent_id=root.id)
    await slot_harness.keeper.write_changed()
    assert [slot_harness.shown(name) for name in names] == ["1", "2", "3", "4", "5"]
    assert await slot_harness.compare() == 0


async def test_while_redis_is_away_nothing_is_forgotten_and_one_write_later_all_is_there(
    engine_url: str, own_redis: RedisServer
) -> None:
    board = RedisSlotWriter(connect(own_redis.url))
    keepers: list[SlotMirror] = []

    def after_commit(events: Sequence[NewEvent]) -> None:
        for keeper in keepers:
            keeper.on_commit(events)

    async with open_runtime(engine_url, RuntimeOptions(after_commit=after_commit)) as keel:
        keepers.append(SlotMirror(keel.cross_zone_engine, SlotCounts(Limits()), board))
        await keel.put_zone()
        own_redis.stop()
        await family(keel, 2)
        for _ in range(3):
            with pytest.raises(BusUnavailable):
                await keepers[0].write_changed()
        own_redis.start()
        await keepers[0].write_changed()
        assert own_redis.direct.client.get(slot_key(ZONE)) == "2"
    await board.close()


async def test_a_commit_is_shown_soon_after_without_being_asked_for(slot_harness: Kept) -> None:
    slot_harness.keeper.start()
    await family(slot_harness.keel, 5)

    async def is_shown() -> bool:
        return slot_harness.shown() == "5"

    await eventually(is_shown, "five slots were shown as taken")
    await slot_harness.keeper.stop()


# -- never back, never beyond


async def test_an_older_position_writes_nothing_however_late_it_comes(slot_harness: Kept) -> None:
    assert await slot_harness.board.write([SlotCounter("x", 5, 10, 100)]) == 1
    assert await slot_harness.board.write([SlotCounter("x", 3, 10, 99)]) == 0
    assert slot_harness.shown("x") == "5"
    assert await slot_harness.board.write([SlotCounter("x", 4, 10, 100), SlotCounter("y", 1, 10, 1)]) == 2
    assert (slot_harness.shown("x"), slot_harness.shown("y")) == ("4", "1")


async def test_no_more_are_shown_than_there_are(slot_harness: Kept) -> None:
    await slot_harness.board.write([SlotCounter("x", 50, 8, 1)])
    assert slot_harness.shown("x") == "8"


async def test_a_hundred_spawns_at_a_limit_of_eight_never_show_more_than_eight(slot_harness: Kept) -> None:
    await slot_harness.keel.put_zone(max_concurrent=8)
    slot_harness.keeper.start()
    root = await slot_harness.keel.spawn()
    seen: set[str | None] = set()
    spawns = asyncio.gather(
        *(slot_harness.keel.spawn_lane.submit(spawn_command(parent_id=root.id)) for _ in range(100)),
        return_exceptions=True,
    )
    while not spawns.done():
        seen.add(slot_harness.shown())
        await asyncio.sleep(0)
    assert result_names(await spawns).count("Spawned") == 8

    async def is_shown() -> bool:
        return slot_harness.shown() == "8"

    await eventually(is_shown, "eight slots were shown as taken")
    assert all(shown is None or int(shown) <= 8 for shown in seen)
    await slot_harness.keeper.stop()


# -- put right


async def test_a_wiped_redis_is_filled_again_and_that_is_counted(slot_harness: Kept) -> None:
    await family(slot_harness.keel, 3)
    await slot_harness.keel.put_zone("quiet")
    await slot_harness.keeper.write_changed()
    slot_harness.redis.wipe()
    slot_harness.pass_time()
    assert await slot_harness.compare() == 2
    assert (slot_harness.shown(), slot_harness.shown("quiet")) == ("3", "0")
    assert await slot_harness.compare() == 0
    assert slot_harness.reconciler.repairs == 2


@pytest.mark.parametrize("lie", ["0", "999", "-3", "nonsense", ""])
async def test_a_lie_is_put_right_and_counted(slot_harness: Kept, lie: str) -> None:
    await family(slot_harness.keel, 3)
    await slot_harness.keeper.write_changed()
    slot_harness.redis.client.set(slot_key(ZONE), lie)
    slot_harness.pass_time()
    assert await slot_harness.compare() == 1
    assert slot_harness.shown() == "3"


async def test_keys_of_another_type_are_put_right(slot_harness: Kept) -> None:
    await family(slot_harness.keel, 3)
    for key in (slot_key(ZONE), position_key(ZONE)):
        slot_harness.redis.client.rpush(key, "in the way")
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "3"
    slot_harness.pass_time()
    slot_harness.redis.client.delete(slot_key(ZONE))
    slot_harness.redis.client.rpush(slot_key(ZONE), "in the way")
    assert await slot_harness.compare() == 1
    assert slot_harness.shown() == "3"


async def test_a_position_that_the_log_has_not_reached_is_overruled(slot_harness: Kept) -> None:
    """As after a restore: what stands in Redis is of positions that are going to be given out again."""
    await family(slot_harness.keel, 3)
    slot_harness.redis.client.set(slot_key(ZONE), "7")
    slot_harness.redis.client.set(position_key(ZONE), "1000000")
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "7"
    assert await slot_harness.compare() == 1
    assert slot_harness.shown() == "3"
    await family(slot_harness.keel, 1)
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "4"


async def test_a_process_that_died_between_commit_and_redis_is_made_good(slot_harness: Kept, engine_url: str) -> None:
    await family(slot_harness.keel, 3)
    await slot_harness.keeper.write_changed()
    async with open_runtime(engine_url) as killed:  # nobody hears of its commits
        await killed.spawn(parent_id=(await killed.spawn()).id)
    slot_harness.pass_time()
    assert await slot_harness.compare() == 1
    assert slot_harness.shown() == "4"


async def test_a_zone_that_changed_a_moment_ago_is_no_repair(slot_harness: Kept) -> None:
    await family(slot_harness.keel, 3)
    assert await slot_harness.compare() == 0
    assert slot_harness.shown() == "3"
    await family(slot_harness.keel, 1)
    assert await slot_harness.compare() == 0
    assert slot_harness.shown() == "4"
    assert slot_harness.reconciler.repairs == 0


async def test_what_has_expired_takes_no_slot_and_is_no_repair(slot_harness: Kept) -> None:
    made = await family(slot_harness.keel, 3)
    await slot_harness.keeper.write_changed()
    slot_harness.pass_time()
    slot_harness.keel.database.expire_sessions(made[1], made[2])
    assert await slot_harness.compare() == 0
    assert slot_harness.shown() == "1"


async def test_a_lowered_limit_is_shown(slot_harness: Kept) -> None:
    await family(slot_harness.keel, 3)
    await slot_harness.keel.put_zone(max_concurrent=2)
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() == "2"
    slot_harness.pass_time()
    assert await slot_harness.compare() == 0


async def test_many_zones_are_compared_page_by_page(slot_harness: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        await slot_harness.keel.put_zone(f"zone{number}")
    slot_harness.pass_time()
    monkeypatch.setattr(slots, "ZONES_MAX", 3)
    assert await slot_harness.reconciler.run_once(6) == 6  # two pages of three
    assert await slot_harness.reconciler.run_once(6) == 2
    assert await slot_harness.reconciler.run_once(6) == 0


async def test_a_comparison_with_a_redis_that_is_away_is_no_failed_sweep(
    slot_harness: Kept, own_redis: RedisServer
) -> None:
    board = RedisSlotWriter(connect(own_redis.url))
    own_redis.stop()
    reconciler = SlotReconciler(slot_harness.keel.cross_zone_engine, SlotCounts(Limits()), board, 10_000)
    for _ in range(2):
        assert await reconciler.run_once(500) == 0
    own_redis.start()
    slot_harness.pass_time()
    assert await reconciler.run_once(500) == 1
    await board.close()


async def test_events_that_touch_no_slot_touch_nothing(slot_harness: Kept) -> None:
    await slot_harness.keeper.write_changed()
    slot_harness.redis.wipe()
    slot_harness.keeper.on_commit([NewEvent("session.suspend", ZONE, "s", "tester")])
    await slot_harness.keeper.write_changed()
    assert slot_harness.shown() is None
