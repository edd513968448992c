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
from tests.support.asking import ZONE, admin, ask
from tests.support.eventually import eventually
from tests.support.keel import Keel, Rigging, codes, keel_on
from tests.support.redis import RedisServer, RedisSide


@dataclass
class Kept:
    """A keel, and the slots of its zones in a Redis."""

    keel: Keel
    redis: RedisSide
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
        self.keel.side.run("update events set at = at - 60000")


@pytest.fixture
async def kept(engine_url: str, redis: RedisSide) -> AsyncIterator[Kept]:
    heard: list[SlotMirror] = []

    def after_commit(events: Sequence[NewEvent]) -> None:
        for keeper in heard:
            keeper.on_commit(events)

    async with keel_on(engine_url, Rigging(after_commit=after_commit)) as keel:
        board = RedisSlotWriter(connect(redis.url))
        counts = SlotCounts(Limits())
        keeper = SlotMirror(keel.everywhere, counts, board)
        heard.append(keeper)
        await keel.zone()
        yield Kept(keel, redis, keeper, SlotReconciler(keel.everywhere, counts, board, 10_000), board)
        await board.close()


async def family(keel: Keel, children: int) -> list[Session]:
    root = await keel.spawn()
    return [root, *[await keel.spawn(parent_id=root.id) for _ in range(children)]]


# -- kept


async def test_children_take_slots_and_roots_take_none(kept: Kept) -> None:
    made = await family(kept.keel, 3)
    await kept.keeper.write_changed()
    assert kept.shown() == "3"
    await kept.keel.end(made[1])
    await kept.keeper.write_changed()
    assert kept.shown() == "2"
    await kept.keel.end(made[0])
    await kept.keeper.write_changed()
    assert kept.shown() == "0"
    assert await kept.compare() == 0


async def test_a_count_that_was_set_right_is_shown_as_it_is_and_is_no_repair(kept: Kept) -> None:
    await family(kept.keel, 3)
    kept.keel.side.run("update admission_counts set live = 1 where scope = 'concurrent'")
    await kept.keeper.write_changed()
    assert kept.shown() == "1"
    await Counted(kept.keel.everywhere, kept.keel.recounts.submit).run_once(1_000)
    await kept.keeper.write_changed()
    assert kept.shown() == "3"
    assert await kept.compare() == 0


async def test_a_suspended_child_keeps_its_slot_and_a_stamped_one_does_not(kept: Kept, engine_url: str) -> None:
    made = await family(kept.keel, 4)
    await kept.keel.suspend(made[1])
    await kept.keeper.write_changed()
    assert kept.shown() == "4"
    async with keel_on(engine_url, Rigging(chunk=1, after_commit=kept.keeper.on_commit)) as other:
        await other.endings.submit(Terminate(ZONE, made[0].id, "x", admin()))
    await kept.keeper.write_changed()
    assert kept.shown() == "0"


async def test_every_zone_has_its_own_whatever_it_is_called(kept: Kept) -> None:
    names = ["a", "a:b", "slots", "slots-position:a", "quarterdeck:slots:a"]
    for number, name in enumerate(names, 1):
        await kept.keel.zone(name)
        root = await kept.keel.spawn(name)
        for _ in range(number):
            await kept.keel.spawn(name, parent_id=root.id)
    await kept.keeper.write_changed()
    assert [kept.shown(name) for name in names] == ["1", "2", "3", "4", "5"]
    assert await kept.compare() == 0


async def test_while_redis_is_away_nothing_is_forgotten_and_one_write_later_all_is_there(
    engine_url: str, own_redis: RedisServer
) -> None:
    board = RedisSlotWriter(connect(own_redis.url))
    keepers: list[SlotMirror] = []

    def after_commit(events: Sequence[NewEvent]) -> None:
        for keeper in keepers:
            keeper.on_commit(events)

    async with keel_on(engine_url, Rigging(after_commit=after_commit)) as keel:
        keepers.append(SlotMirror(keel.everywhere, SlotCounts(Limits()), board))
        await keel.zone()
        own_redis.stop()
        await family(keel, 2)
        for _ in range(3):
            with pytest.raises(BusUnavailable):
                await keepers[0].write_changed()
        own_redis.start()
        await keepers[0].write_changed()
        assert own_redis.side.client.get(slot_key(ZONE)) == "2"
    await board.close()


async def test_a_commit_is_shown_soon_after_without_being_asked_for(kept: Kept) -> None:
    kept.keeper.start()
    await family(kept.keel, 5)

    async def is_shown() -> bool:
        return kept.shown() == "5"

    await eventually(is_shown, "five slots were shown as taken")
    await kept.keeper.stop()


# -- never back, never beyond


async def test_an_older_position_writes_nothing_however_late_it_comes(kept: Kept) -> None:
    assert await kept.board.write([SlotCounter("x", 5, 10, 100)]) == 1
    assert await kept.board.write([SlotCounter("x", 3, 10, 99)]) == 0
    assert kept.shown("x") == "5"
    assert await kept.board.write([SlotCounter("x", 4, 10, 100), SlotCounter("y", 1, 10, 1)]) == 2
    assert (kept.shown("x"), kept.shown("y")) == ("4", "1")


async def test_no_more_are_shown_than_there_are(kept: Kept) -> None:
    await kept.board.write([SlotCounter("x", 50, 8, 1)])
    assert kept.shown("x") == "8"


async def test_a_hundred_spawns_at_a_limit_of_eight_never_show_more_than_eight(kept: Kept) -> None:
    await kept.keel.zone(max_concurrent=8)
    kept.keeper.start()
    root = await kept.keel.spawn()
    seen: set[str | None] = set()
    spawns = asyncio.gather(
        *(kept.keel.spawns.submit(ask(parent_id=root.id)) for _ in range(100)), return_exceptions=True
    )
    while not spawns.done():
        seen.add(kept.shown())
        await asyncio.sleep(0)
    assert codes(await spawns).count("Spawned") == 8

    async def is_shown() -> bool:
        return kept.shown() == "8"

    await eventually(is_shown, "eight slots were shown as taken")
    assert all(shown is None or int(shown) <= 8 for shown in seen)
    await kept.keeper.stop()


# -- put right


async def test_a_wiped_redis_is_filled_again_and_that_is_counted(kept: Kept) -> None:
    await family(kept.keel, 3)
    await kept.keel.zone("quiet")
    await kept.keeper.write_changed()
    kept.redis.wipe()
    kept.pass_time()
    assert await kept.compare() == 2
    assert (kept.shown(), kept.shown("quiet")) == ("3", "0")
    assert await kept.compare() == 0
    assert kept.reconciler.repairs == 2


@pytest.mark.parametrize("lie", ["0", "999", "-3", "nonsense", ""])
async def test_a_lie_is_put_right_and_counted(kept: Kept, lie: str) -> None:
    await family(kept.keel, 3)
    await kept.keeper.write_changed()
    kept.redis.client.set(slot_key(ZONE), lie)
    kept.pass_time()
    assert await kept.compare() == 1
    assert kept.shown() == "3"


async def test_keys_of_another_type_are_put_right(kept: Kept) -> None:
    await family(kept.keel, 3)
    for key in (slot_key(ZONE), position_key(ZONE)):
        kept.redis.client.rpush(key, "in the way")
    await kept.keeper.write_changed()
    assert kept.shown() == "3"
    kept.pass_time()
    kept.redis.client.delete(slot_key(ZONE))
    kept.redis.client.rpush(slot_key(ZONE), "in the way")
    assert await kept.compare() == 1
    assert kept.shown() == "3"


async def test_a_position_that_the_log_has_not_reached_is_overruled(kept: Kept) -> None:
    """As after a restore: what stands in Redis is of positions that are going to be given out again."""
    await family(kept.keel, 3)
    kept.redis.client.set(slot_key(ZONE), "7")
    kept.redis.client.set(position_key(ZONE), "1000000")
    await kept.keeper.write_changed()
    assert kept.shown() == "7"
    assert await kept.compare() == 1
    assert kept.shown() == "3"
    await family(kept.keel, 1)
    await kept.keeper.write_changed()
    assert kept.shown() == "4"


async def test_a_process_that_died_between_commit_and_redis_is_made_good(kept: Kept, engine_url: str) -> None:
    await family(kept.keel, 3)
    await kept.keeper.write_changed()
    async with keel_on(engine_url) as killed:  # nobody hears of its commits
        await killed.spawn(parent_id=(await killed.spawn()).id)
    kept.pass_time()
    assert await kept.compare() == 1
    assert kept.shown() == "4"


async def test_a_zone_that_changed_a_moment_ago_is_no_repair(kept: Kept) -> None:
    await family(kept.keel, 3)
    assert await kept.compare() == 0
    assert kept.shown() == "3"
    await family(kept.keel, 1)
    assert await kept.compare() == 0
    assert kept.shown() == "4"
    assert kept.reconciler.repairs == 0


async def test_what_has_expired_takes_no_slot_and_is_no_repair(kept: Kept) -> None:
    made = await family(kept.keel, 3)
    await kept.keeper.write_changed()
    kept.pass_time()
    kept.keel.side.expire(made[1], made[2])
    assert await kept.compare() == 0
    assert kept.shown() == "1"


async def test_a_lowered_limit_is_shown(kept: Kept) -> None:
    await family(kept.keel, 3)
    await kept.keel.zone(max_concurrent=2)
    await kept.keeper.write_changed()
    assert kept.shown() == "2"
    kept.pass_time()
    assert await kept.compare() == 0


async def test_many_zones_are_compared_page_by_page(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        await kept.keel.zone(f"zone{number}")
    kept.pass_time()
    monkeypatch.setattr(slots, "ZONES_MAX", 3)
    assert await kept.reconciler.run_once(6) == 6  # two pages of three
    assert await kept.reconciler.run_once(6) == 2
    assert await kept.reconciler.run_once(6) == 0


async def test_a_comparison_with_a_redis_that_is_away_is_no_failed_sweep(kept: Kept, own_redis: RedisServer) -> None:
    board = RedisSlotWriter(connect(own_redis.url))
    own_redis.stop()
    reconciler = SlotReconciler(kept.keel.everywhere, SlotCounts(Limits()), board, 10_000)
    for _ in range(2):
        assert await reconciler.run_once(500) == 0
    own_redis.start()
    kept.pass_time()
    assert await reconciler.run_once(500) == 1
    await board.close()


async def test_events_that_touch_no_slot_touch_nothing(kept: Kept) -> None:
    await kept.keeper.write_changed()
    kept.redis.wipe()
    kept.keeper.on_commit([NewEvent("session.suspend", ZONE, "s", "tester")])
    await kept.keeper.write_changed()
    assert kept.shown() is None
