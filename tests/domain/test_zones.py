"""Zones, on both engines: made once, changed in order, and looked at with what is used in them."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from quarterdeck.core.errors import NotFound
from quarterdeck.domain.zones import operations, rules
from quarterdeck.domain.zones.model import Limits, Overrides, PutZone, ZoneRef
from tests.support.builders import ZONE
from tests.support.query_plans import RecordingStore
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime, open_store, result_names


def put(zone_id: str, name: str | None = None, quotas: Overrides | None = None, creates: bool = True) -> PutZone:
    return PutZone(zone_id, name, quotas, "tester", create_missing=creates)


async def test_a_zone_is_made_once_and_known_from_then_on(runtime: RuntimeHarness) -> None:
    first = await runtime.put_zone_lane.submit(put("new"))
    again = await runtime.put_zone_lane.submit(put("new"))
    assert (first.created, again.created) == (True, False)
    assert again.zone == first.zone
    assert (first.zone.name, first.zone.frozen, first.zone.quotas) == ("new", 0, "{}")


async def test_what_is_answered_is_what_is_stored(runtime: RuntimeHarness) -> None:
    made = await runtime.put_zone_lane.submit(put("new", "A name", Overrides(max_depth=3)))
    assert (await runtime.show_zone_lane.submit(ZoneRef("new"))).zone == made.zone
    changed = await runtime.put_zone_lane.submit(put("new", "Another"))
    assert (await runtime.show_zone_lane.submit(ZoneRef("new"))).zone == changed.zone
    unchanged = await runtime.put_zone_lane.submit(put("new", "Another"))
    assert unchanged.zone == changed.zone


async def test_of_many_who_make_one_zone_at_once_exactly_one_made_it(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        puts = [runtime.put_zone_lane.submit(put(f"zone-{number}")) for _ in range(20)]
        done = await asyncio.gather(*puts)
        assert sum(outcome.created for outcome in done) == 1
    created = [event for event in await runtime.read_log() if event.type == "zone.create"]
    assert len(created) == 1 + ROUNDS


async def test_replicas_that_make_the_same_zones_in_opposite_order_make_each_once(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(2)]
        for number in range(ROUNDS):
            names = [f"zone-{number}-{i}" for i in range(40)]
            orders = (names, names[::-1])
            puts = [
                replica.put_zone_lane.submit(put(name))
                for replica, order in zip(replicas, orders, strict=True)
                for name in order
            ]
            done = await asyncio.gather(*puts)
            assert sum(outcome.created for outcome in done) == 40
        assert replicas[0].database.count("zones") == 40 * ROUNDS


async def test_zones_are_made_and_locked_in_order_of_id_whatever_the_order_of_asks(sqlite_url: str) -> None:
    # Two batches that took the same zones in different orders would wait for each other.
    store = RecordingStore(await open_store(sqlite_url))
    keel = RuntimeHarness(sqlite_url, (store, store), RuntimeOptions())
    await asyncio.gather(*(keel.put_zone_lane.submit(put(name)) for name in ("c", "a", "d", "b", "a")))
    for statement in ("zone_insert", "zones_lock_skip_locked"):
        batch = store.statements[statement].params["batch"]
        assert isinstance(batch, list)
        assert [row[0] for row in batch] == ["a", "b", "c", "d"]
    await store.close()


async def test_of_two_changes_in_one_batch_the_later_holds(runtime: RuntimeHarness) -> None:
    asks = [
        put("new", "first", Overrides(max_depth=1, max_children=1)),
        put("new", None, Overrides(max_depth=2)),
        put("new", "third", Overrides(max_children=None)),
    ]
    done = await asyncio.gather(*(runtime.put_zone_lane.submit(asked) for asked in asks))
    assert [outcome.created for outcome in done] == [True, False, False]
    assert [outcome.zone.name for outcome in done] == ["first", "first", "third"]
    stored = (await runtime.show_zone_lane.submit(ZoneRef("new"))).zone
    assert stored == done[-1].zone
    assert rules.overrides_of_zone(stored) == Overrides(max_depth=2)


async def test_the_name_of_a_zone_is_the_first_asks_also_when_that_one_gave_none(runtime: RuntimeHarness) -> None:
    done = await asyncio.gather(*(runtime.put_zone_lane.submit(asked) for asked in [put("new"), put("new", "aaa")]))
    assert [outcome.zone.name for outcome in done] == ["new", "aaa"]


async def test_every_change_is_in_the_log_and_a_put_that_changes_nothing_is_not(runtime: RuntimeHarness) -> None:
    await runtime.put_zone_lane.submit(put("new", "name", Overrides(max_depth=1)))
    await runtime.put_zone_lane.submit(put("new", "name", Overrides(max_depth=1)))
    await runtime.put_zone_lane.submit(put("new", "other"))
    own = [event for event in await runtime.read_log() if event.subject == "new"]
    assert [(event.type, event.zone_id, event.actor) for event in own] == [
        ("zone.create", "new", "tester"),
        ("zone.change", "new", "tester"),
    ]
    assert msgspec.json.decode(own[1].data) == {"name": "other", "quotas": {"max_depth": 1}}


async def test_quotas_of_a_zone_that_does_not_exist_are_not_found_and_make_nothing(runtime: RuntimeHarness) -> None:
    asks = [
        put("nowhere", None, Overrides(max_depth=1), creates=False),
        put(ZONE, None, Overrides(max_depth=1), creates=False),
    ]
    outcomes = await asyncio.gather(*(runtime.put_zone_lane.submit(asked) for asked in asks), return_exceptions=True)
    assert result_names(outcomes) == ["zone_not_found", "PutZoneResult"]
    assert runtime.database.count("zones") == 1


async def test_a_zone_is_shown_with_what_is_used_in_it(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2)
    await runtime.terminate(made[1])
    await runtime.put_zone("empty")
    asks = [ZoneRef(ZONE), ZoneRef("empty"), ZoneRef("nowhere"), ZoneRef(ZONE)]
    outcomes = await asyncio.gather(*(runtime.show_zone_lane.submit(asked) for asked in asks), return_exceptions=True)
    assert result_names(outcomes) == ["ZoneUsage", "ZoneUsage", "zone_not_found", "ZoneUsage"]
    assert [(use.sessions, use.concurrent) for use in outcomes if not isinstance(use, BaseException)] == [
        (2, 1),
        (0, 0),
        (2, 1),
    ]


async def test_what_has_expired_is_not_used_before_any_sweep(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2)
    runtime.database.expire_sessions(made[1])
    use = await runtime.show_zone_lane.submit(ZoneRef(ZONE))
    assert (use.sessions, use.concurrent) == (2, 1)
    runtime.database.expire_sessions(*made)
    use = await runtime.show_zone_lane.submit(ZoneRef(ZONE))
    assert (use.sessions, use.concurrent) == (0, 0)


async def test_the_platforms_defaults_hold_where_a_zone_sets_nothing(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(defaults=Limits(max_sessions=1))) as keel:
        await keel.put_zone_lane.submit(put("plain"))
        await keel.put_zone_lane.submit(put("own", None, Overrides(max_sessions=2)))
        spawned = [await keel.spawn(zone_id) for zone_id in ("plain", "own", "own")]
        assert [msgspec.json.decode(row.limits, type=Limits).max_sessions for row in spawned] == [1, 2, 2]
        for zone_id in ("plain", "own"):
            with pytest.raises(Exception, match="max_sessions"):
                await keel.spawn(zone_id)


async def test_zones_are_listed_by_id_page_by_page(runtime: RuntimeHarness) -> None:
    for zone_id in ("c", "a", "b"):
        await runtime.put_zone(zone_id)
    pages = [
        await runtime.cross_zone_engine.read(lambda tx: operations.list_zones(tx, "", 3)),
        await runtime.cross_zone_engine.read(lambda tx: operations.list_zones(tx, "c", 3)),
    ]
    assert [[zone.id for zone in page] for page in pages] == [["a", "b", "c"], [ZONE]]


async def test_a_zone_that_does_not_exist_is_not_found(runtime: RuntimeHarness) -> None:
    with pytest.raises(NotFound, match="no zone 'nowhere'"):
        await runtime.spawn("nowhere")
