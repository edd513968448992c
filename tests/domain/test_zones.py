"""Zones on both engines: creation, updates, and reads with their usage."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from quarterdeck.core.errors import NotFound
from quarterdeck.domain.zones import operations
from quarterdeck.domain.zones.model import Limits, Overrides, PutZone, ShowZone
from quarterdeck.domain.zones.rules import limits
from tests.support.builders import ZONE
from tests.support.query_plans import RecordingStore
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime, open_store, result_names


def put(zone_id: str, name: str | None = None, quotas: Overrides | None = None, creates: bool = True) -> PutZone:
    return PutZone(zone_id, name, quotas, "tester", create_missing=creates)


async def test_repeated_put_creates_a_zone_once(runtime: RuntimeHarness) -> None:
    first = await runtime.put_zone_lane.submit(put("new"))
    repeated = await runtime.put_zone_lane.submit(put("new"))
    assert (first.created, repeated.created) == (True, False)
    assert repeated.zone == first.zone
    assert (first.zone.name, first.zone.frozen, first.zone.quotas) == ("new", 0, "{}")


async def test_put_returns_the_stored_zone(runtime: RuntimeHarness) -> None:
    created = await runtime.put_zone_lane.submit(put("new", "A name", Overrides(max_depth=3)))
    assert (await runtime.show_zone_lane.submit(ShowZone("new"))).zone == created.zone
    changed = await runtime.put_zone_lane.submit(put("new", "Another"))
    assert (await runtime.show_zone_lane.submit(ShowZone("new"))).zone == changed.zone
    unchanged = await runtime.put_zone_lane.submit(put("new", "Another"))
    assert unchanged.zone == changed.zone


async def test_concurrent_puts_create_a_zone_once(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        requests = [runtime.put_zone_lane.submit(put(f"zone-{number}")) for _ in range(20)]
        results = await asyncio.gather(*requests)
        assert sum(result.created for result in results) == 1
    created = [event for event in await runtime.read_log() if event.type == "zone.create"]
    assert len(created) == 1 + ROUNDS


async def test_replicas_that_create_the_same_zones_in_opposite_order_create_each_once(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(2)]
        for number in range(ROUNDS):
            names = [f"zone-{number}-{i}" for i in range(40)]
            orders = (names, names[::-1])
            requests = [
                replica.put_zone_lane.submit(put(name))
                for replica, order in zip(replicas, orders, strict=True)
                for name in order
            ]
            results = await asyncio.gather(*requests)
            assert sum(result.created for result in results) == 40
        assert replicas[0].database.count("zones") == 40 * ROUNDS


async def test_zones_are_created_and_locked_in_order_of_id(sqlite_url: str) -> None:
    # Two batches that lock the same zones in different orders would deadlock.
    store = RecordingStore(await open_store(sqlite_url))
    runtime = RuntimeHarness(sqlite_url, (store, store), RuntimeOptions())
    await asyncio.gather(*(runtime.put_zone_lane.submit(put(name)) for name in ("c", "a", "d", "b", "a")))
    for statement in ("zone_insert", "zones_lock_skip_locked"):
        batch = store.statements[statement].params["batch"]
        assert isinstance(batch, list)
        assert [row[0] for row in batch] == ["a", "b", "c", "d"]
    await store.close()


async def test_later_update_in_a_batch_wins(runtime: RuntimeHarness) -> None:
    commands = [
        put("new", "first", Overrides(max_depth=1, max_children=1)),
        put("new", None, Overrides(max_depth=2)),
        put("new", "third", Overrides(max_children=None)),
    ]
    results = await asyncio.gather(*(runtime.put_zone_lane.submit(command) for command in commands))
    assert [result.created for result in results] == [True, False, False]
    assert [result.zone.name for result in results] == ["first", "first", "third"]
    stored = (await runtime.show_zone_lane.submit(ShowZone("new"))).zone
    assert stored == results[-1].zone
    assert limits.overrides_of_zone(stored) == Overrides(max_depth=2)


async def test_zone_name_defaults_to_its_id_before_later_updates_of_the_batch(runtime: RuntimeHarness) -> None:
    results = await asyncio.gather(
        *(runtime.put_zone_lane.submit(command) for command in [put("new"), put("new", "aaa")])
    )
    assert [result.zone.name for result in results] == ["new", "aaa"]


async def test_only_puts_that_change_something_write_an_event(runtime: RuntimeHarness) -> None:
    await runtime.put_zone_lane.submit(put("new", "name", Overrides(max_depth=1)))
    await runtime.put_zone_lane.submit(put("new", "name", Overrides(max_depth=1)))
    await runtime.put_zone_lane.submit(put("new", "other"))
    events = [event for event in await runtime.read_log() if event.subject == "new"]
    assert [(event.type, event.zone_id, event.actor) for event in events] == [
        ("zone.create", "new", "tester"),
        ("zone.change", "new", "tester"),
    ]
    assert msgspec.json.decode(events[1].data) == {"name": "other", "quotas": {"max_depth": 1}}


async def test_quotas_of_an_unknown_zone_are_not_found_and_create_nothing(runtime: RuntimeHarness) -> None:
    commands = [
        put("unknown-zone", None, Overrides(max_depth=1), creates=False),
        put(ZONE, None, Overrides(max_depth=1), creates=False),
    ]
    results = await asyncio.gather(
        *(runtime.put_zone_lane.submit(command) for command in commands), return_exceptions=True
    )
    assert result_names(results) == ["zone_not_found", "PutZoneResult"]
    assert runtime.database.count("zones") == 1


async def test_zone_is_returned_with_its_usage(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2)
    await runtime.terminate(tree[1])
    await runtime.put_zone("empty")
    refs = [ShowZone(ZONE), ShowZone("empty"), ShowZone("unknown-zone"), ShowZone(ZONE)]
    results = await asyncio.gather(*(runtime.show_zone_lane.submit(ref) for ref in refs), return_exceptions=True)
    assert result_names(results) == ["ZoneUsage", "ZoneUsage", "zone_not_found", "ZoneUsage"]
    assert [(usage.sessions, usage.concurrent) for usage in results if not isinstance(usage, BaseException)] == [
        (2, 1),
        (0, 0),
        (2, 1),
    ]


async def test_expired_sessions_are_not_in_the_usage_before_any_sweep(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2)
    runtime.database.expire_sessions(tree[1])
    usage = await runtime.show_zone_lane.submit(ShowZone(ZONE))
    assert (usage.sessions, usage.concurrent) == (2, 1)
    runtime.database.expire_sessions(*tree)
    usage = await runtime.show_zone_lane.submit(ShowZone(ZONE))
    assert (usage.sessions, usage.concurrent) == (0, 0)


async def test_default_limits_apply_where_a_zone_sets_none(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(defaults=Limits(max_sessions=1))) as runtime:
        await runtime.put_zone_lane.submit(put("plain"))
        await runtime.put_zone_lane.submit(put("own", None, Overrides(max_sessions=2)))
        spawned = [await runtime.spawn(zone_id) for zone_id in ("plain", "own", "own")]
        assert [msgspec.json.decode(row.limits, type=Limits).max_sessions for row in spawned] == [1, 2, 2]
        for zone_id in ("plain", "own"):
            with pytest.raises(Exception, match="max_sessions"):
                await runtime.spawn(zone_id)


async def test_zones_are_paged_by_id(runtime: RuntimeHarness) -> None:
    for zone_id in ("c", "a", "b"):
        await runtime.put_zone(zone_id)
    pages = [
        await runtime.cross_zone_engine.read(lambda tx: operations.list_zones(tx, "", 3)),
        await runtime.cross_zone_engine.read(lambda tx: operations.list_zones(tx, "c", 3)),
    ]
    assert [[zone.id for zone in page] for page in pages] == [["a", "b", "c"], [ZONE]]


async def test_unknown_zone_is_not_found(runtime: RuntimeHarness) -> None:
    with pytest.raises(NotFound, match="Zone 'unknown-zone' does not exist"):
        await runtime.spawn("unknown-zone")
