"""The slot mirror in a real Redis: it follows each commit, and the reconciler repairs wrong values."""

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
from quarterdeck.domain.sessions.sweeps import CountReconciler
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
class SlotHarness:
    """A runtime, and the slots of its zones in Redis."""

    runtime: RuntimeHarness
    redis: DirectRedis
    mirror: SlotMirror
    reconciler: SlotReconciler
    writer: RedisSlotWriter

    def stored(self, zone_id: str = ZONE) -> str | None:
        value = self.redis.client.get(slot_key(zone_id))
        return None if value is None else str(value)

    async def reconcile(self) -> int:
        return await SweepRunner([self.reconciler.sweep()]).run_now(SLOTS)

    def age_events(self) -> None:
        """Make all events of the log one minute older."""
        self.runtime.database.execute("update events set at = at - 60000")


@pytest.fixture
async def slot_harness(engine_url: str, redis: DirectRedis) -> AsyncIterator[SlotHarness]:
    mirrors: list[SlotMirror] = []

    def after_commit(events: Sequence[NewEvent]) -> None:
        for mirror in mirrors:
            mirror.on_commit(events)

    async with open_runtime(engine_url, RuntimeOptions(after_commit=after_commit)) as runtime:
        writer = RedisSlotWriter(connect(redis.url))
        counts = SlotCounts(Limits())
        mirror = SlotMirror(runtime.cross_zone_engine, counts, writer)
        mirrors.append(mirror)
        await runtime.put_zone()
        yield SlotHarness(
            runtime, redis, mirror, SlotReconciler(runtime.cross_zone_engine, counts, writer, 10_000), writer
        )
        await writer.close()


async def spawn_children(runtime: RuntimeHarness, children: int) -> list[Session]:
    root = await runtime.spawn()
    return [root, *[await runtime.spawn(parent_id=root.id) for _ in range(children)]]


# -- writes


async def test_children_take_slots_and_roots_do_not(slot_harness: SlotHarness) -> None:
    sessions = await spawn_children(slot_harness.runtime, 3)
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "3"
    await slot_harness.runtime.terminate(sessions[1])
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "2"
    await slot_harness.runtime.terminate(sessions[0])
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "0"
    assert await slot_harness.reconcile() == 0


async def test_repaired_count_is_mirrored_and_is_not_a_mirror_repair(slot_harness: SlotHarness) -> None:
    await spawn_children(slot_harness.runtime, 3)
    slot_harness.runtime.database.execute("update admission_counts set live = 1 where scope = 'concurrent'")
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "1"
    await CountReconciler(
        slot_harness.runtime.cross_zone_engine, slot_harness.runtime.repair_counts_lane.submit
    ).run_once(1_000)
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "3"
    assert await slot_harness.reconcile() == 0


async def test_suspended_child_keeps_its_slot_and_a_terminating_one_does_not(
    slot_harness: SlotHarness, engine_url: str
) -> None:
    sessions = await spawn_children(slot_harness.runtime, 4)
    await slot_harness.runtime.suspend(sessions[1])
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "4"
    async with open_runtime(engine_url, RuntimeOptions(chunk=1, after_commit=slot_harness.mirror.on_commit)) as other:
        await other.terminate_lane.submit(Terminate(ZONE, sessions[0].id, "x", admin()))
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "0"


async def test_each_zone_has_its_own_key_whatever_its_name(slot_harness: SlotHarness) -> None:
    zone_ids = ["a", "a:b", "slots", "slots-position:a", "quarterdeck:slots:a"]
    for number, zone_id in enumerate(zone_ids, 1):
        await slot_harness.runtime.put_zone(zone_id)
        root = await slot_harness.runtime.spawn(zone_id)
        for _ in range(number):
            await slot_harness.runtime.spawn(zone_id, parent_id=root.id)
    await slot_harness.mirror.write_changed()
    assert [slot_harness.stored(zone_id) for zone_id in zone_ids] == ["1", "2", "3", "4", "5"]
    assert await slot_harness.reconcile() == 0


async def test_changes_during_a_redis_outage_are_written_by_the_next_write(
    engine_url: str, own_redis: RedisServer
) -> None:
    writer = RedisSlotWriter(connect(own_redis.url))
    mirrors: list[SlotMirror] = []

    def after_commit(events: Sequence[NewEvent]) -> None:
        for mirror in mirrors:
            mirror.on_commit(events)

    async with open_runtime(engine_url, RuntimeOptions(after_commit=after_commit)) as runtime:
        mirrors.append(SlotMirror(runtime.cross_zone_engine, SlotCounts(Limits()), writer))
        await runtime.put_zone()
        own_redis.stop()
        await spawn_children(runtime, 2)
        for _ in range(3):
            with pytest.raises(BusUnavailable):
                await mirrors[0].write_changed()
        own_redis.start()
        await mirrors[0].write_changed()
        assert own_redis.direct.client.get(slot_key(ZONE)) == "2"
    await writer.close()


async def test_running_mirror_writes_after_each_commit(slot_harness: SlotHarness) -> None:
    slot_harness.mirror.start()
    await spawn_children(slot_harness.runtime, 5)

    async def is_stored() -> bool:
        return slot_harness.stored() == "5"

    await eventually(is_stored, "five slots were mirrored as taken")
    await slot_harness.mirror.stop()


# -- monotonic and bounded


async def test_write_of_an_older_position_is_ignored(slot_harness: SlotHarness) -> None:
    assert await slot_harness.writer.write([SlotCounter("x", 5, 10, 100)]) == 1
    assert await slot_harness.writer.write([SlotCounter("x", 3, 10, 99)]) == 0
    assert slot_harness.stored("x") == "5"
    assert await slot_harness.writer.write([SlotCounter("x", 4, 10, 100), SlotCounter("y", 1, 10, 1)]) == 2
    assert (slot_harness.stored("x"), slot_harness.stored("y")) == ("4", "1")


async def test_mirrored_value_is_capped_at_the_limit(slot_harness: SlotHarness) -> None:
    await slot_harness.writer.write([SlotCounter("x", 50, 8, 1)])
    assert slot_harness.stored("x") == "8"


async def test_100_spawns_at_a_limit_of_8_never_mirror_more_than_8(slot_harness: SlotHarness) -> None:
    await slot_harness.runtime.put_zone(max_concurrent=8)
    slot_harness.mirror.start()
    root = await slot_harness.runtime.spawn()
    seen: set[str | None] = set()
    spawns = asyncio.gather(
        *(slot_harness.runtime.spawn_lane.submit(spawn_command(parent_id=root.id)) for _ in range(100)),
        return_exceptions=True,
    )
    while not spawns.done():
        seen.add(slot_harness.stored())
        await asyncio.sleep(0)
    assert result_names(await spawns).count("Spawned") == 8

    async def is_stored() -> bool:
        return slot_harness.stored() == "8"

    await eventually(is_stored, "eight slots were mirrored as taken")
    assert all(stored is None or int(stored) <= 8 for stored in seen)
    await slot_harness.mirror.stop()


# -- repair


async def test_wiped_redis_is_refilled_and_repairs_are_counted(slot_harness: SlotHarness) -> None:
    await spawn_children(slot_harness.runtime, 3)
    await slot_harness.runtime.put_zone("quiet")
    await slot_harness.mirror.write_changed()
    slot_harness.redis.wipe()
    slot_harness.age_events()
    assert await slot_harness.reconcile() == 2
    assert (slot_harness.stored(), slot_harness.stored("quiet")) == ("3", "0")
    assert await slot_harness.reconcile() == 0
    assert slot_harness.reconciler.repair_count == 2


@pytest.mark.parametrize("value", ["0", "999", "-3", "invalid", ""])
async def test_wrong_value_is_repaired_and_counted(slot_harness: SlotHarness, value: str) -> None:
    await spawn_children(slot_harness.runtime, 3)
    await slot_harness.mirror.write_changed()
    slot_harness.redis.client.set(slot_key(ZONE), value)
    slot_harness.age_events()
    assert await slot_harness.reconcile() == 1
    assert slot_harness.stored() == "3"


async def test_keys_of_another_type_are_repaired(slot_harness: SlotHarness) -> None:
    await spawn_children(slot_harness.runtime, 3)
    for key in (slot_key(ZONE), position_key(ZONE)):
        slot_harness.redis.client.rpush(key, "not a string")
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "3"
    slot_harness.age_events()
    slot_harness.redis.client.delete(slot_key(ZONE))
    slot_harness.redis.client.rpush(slot_key(ZONE), "not a string")
    assert await slot_harness.reconcile() == 1
    assert slot_harness.stored() == "3"


async def test_position_beyond_the_log_is_overwritten(slot_harness: SlotHarness) -> None:
    # As after a restore of the database: Redis has positions that the log will assign again.
    await spawn_children(slot_harness.runtime, 3)
    slot_harness.redis.client.set(slot_key(ZONE), "7")
    slot_harness.redis.client.set(position_key(ZONE), "1000000")
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "7"
    assert await slot_harness.reconcile() == 1
    assert slot_harness.stored() == "3"
    await spawn_children(slot_harness.runtime, 1)
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "4"


async def test_commit_that_was_never_mirrored_is_repaired(slot_harness: SlotHarness, engine_url: str) -> None:
    await spawn_children(slot_harness.runtime, 3)
    await slot_harness.mirror.write_changed()
    async with open_runtime(engine_url) as killed:  # its commits are not mirrored
        await killed.spawn(parent_id=(await killed.spawn()).id)
    slot_harness.age_events()
    assert await slot_harness.reconcile() == 1
    assert slot_harness.stored() == "4"


async def test_update_of_a_recently_changed_zone_is_not_counted_as_a_repair(slot_harness: SlotHarness) -> None:
    await spawn_children(slot_harness.runtime, 3)
    assert await slot_harness.reconcile() == 0
    assert slot_harness.stored() == "3"
    await spawn_children(slot_harness.runtime, 1)
    assert await slot_harness.reconcile() == 0
    assert slot_harness.stored() == "4"
    assert slot_harness.reconciler.repair_count == 0


async def test_expired_sessions_take_no_slot_and_are_not_counted_as_repairs(slot_harness: SlotHarness) -> None:
    sessions = await spawn_children(slot_harness.runtime, 3)
    await slot_harness.mirror.write_changed()
    slot_harness.age_events()
    slot_harness.runtime.database.expire_sessions(sessions[1], sessions[2])
    assert await slot_harness.reconcile() == 0
    assert slot_harness.stored() == "1"


async def test_lowered_limit_is_mirrored(slot_harness: SlotHarness) -> None:
    await spawn_children(slot_harness.runtime, 3)
    await slot_harness.runtime.put_zone(max_concurrent=2)
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() == "2"
    slot_harness.age_events()
    assert await slot_harness.reconcile() == 0


async def test_many_zones_are_reconciled_in_pages(slot_harness: SlotHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        await slot_harness.runtime.put_zone(f"zone{number}")
    slot_harness.age_events()
    monkeypatch.setattr(slots, "ZONES_MAX", 3)
    assert await slot_harness.reconciler.run_once(6) == 6  # two pages of three
    assert await slot_harness.reconciler.run_once(6) == 2
    assert await slot_harness.reconciler.run_once(6) == 0


async def test_reconciling_during_a_redis_outage_does_not_fail_the_sweep(
    slot_harness: SlotHarness, own_redis: RedisServer
) -> None:
    writer = RedisSlotWriter(connect(own_redis.url))
    own_redis.stop()
    reconciler = SlotReconciler(slot_harness.runtime.cross_zone_engine, SlotCounts(Limits()), writer, 10_000)
    for _ in range(2):
        assert await reconciler.run_once(500) == 0
    own_redis.start()
    slot_harness.age_events()
    assert await reconciler.run_once(500) == 1
    await writer.close()


async def test_events_that_change_no_slot_write_nothing(slot_harness: SlotHarness) -> None:
    await slot_harness.mirror.write_changed()
    slot_harness.redis.wipe()
    slot_harness.mirror.on_commit([NewEvent("session.suspend", ZONE, "s", "tester")])
    await slot_harness.mirror.write_changed()
    assert slot_harness.stored() is None
