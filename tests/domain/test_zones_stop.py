"""Whole zones: frozen and thawed, stopped with everything in them, and ended for good."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable

import msgspec
import pytest
from hypothesis import given

from quarterdeck.core.errors import Conflict, Frozen, KeyConflict, NotFound, Problem
from quarterdeck.domain.sessions.model import Receipt, Session, State, StopZone, Terminate, TerminateResult
from quarterdeck.domain.sessions.sweeps import CASCADE
from quarterdeck.domain.zones.model import Overrides, PutZone, SetZoneFrozen, ZoneRef
from quarterdeck.engine.event_log import Event
from tests.support.builders import ZONE, admin, spawn_command
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime, result_names
from tests.support.session_trees import DATABASE_EXAMPLES, shapes, subtree_ids

CHUNK = 4


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url, RuntimeOptions(chunk=CHUNK)) as laid:
        await laid.put_zone()
        yield laid


async def forest(keel: RuntimeHarness, *shapes: tuple[int, ...], zone_id: str = ZONE) -> list[Session]:
    return [row for shape in shapes for row in await keel.spawn_tree(*shape, zone_id=zone_id)]


async def of_zone(keel: RuntimeHarness, zone_id: str = ZONE) -> list[Event]:
    """What became of the zone itself, since it was made."""
    wanted = ("zone.freeze", "zone.thaw", "zone.end", "zone.change")
    return [e for e in await keel.read_log() if e.subject == zone_id and e.type in wanted]


async def endings(keel: RuntimeHarness) -> list[Event]:
    return [event for event in await keel.read_log() if event.type == "session.terminate"]


async def assert_all_ended(keel: RuntimeHarness, sessions: list[Session], reason: str | None = "stopped") -> None:
    for row in sessions:
        shown = await keel.read_session(row)
        assert shown.status is State.TERMINATED
        assert reason is None or shown.termination_reason == reason
    zone_id = sessions[0].zone_id
    assert keel.database.count("agent_sessions", "zone_id = ? and status <> 'terminated'", zone_id) == 0
    assert keel.database.count("admission_counts", "zone_id = ? and live <> 0", zone_id) == 0
    places = {event.subject: place for place, event in enumerate(await endings(keel))}
    for row in sessions:
        if row.parent_id is not None:
            assert places[row.id] < places[row.parent_id]
    assert_counts_match_rows(keel.database)


# -- frozen


async def test_a_frozen_zone_refuses_every_spawn_and_says_what_frees_it(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    assert (await runtime.freeze_zone()).frozen == 1
    for parent_id in (None, root.id, "nobody"):
        with pytest.raises(Frozen) as refused:
            await runtime.spawn(parent_id=parent_id)
        assert (refused.value.status, refused.value.code) == (423, "zone_frozen")
        assert "thaws" in str(refused.value.members["frees"])
    assert (await runtime.unfreeze_zone()).frozen == 0
    assert await runtime.spawn(parent_id=root.id)


async def test_freezing_one_zone_is_nothing_to_another(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    await runtime.freeze_zone()
    outcomes = await asyncio.gather(
        *(runtime.spawn_lane.submit(spawn_command(zone_id)) for zone_id in (ZONE, "other", ZONE)),
        return_exceptions=True,
    )
    assert result_names(outcomes) == ["zone_frozen", "Spawned", "zone_frozen"]


async def test_freezing_and_thawing_twice_change_nothing_the_second_time(runtime: RuntimeHarness) -> None:
    frozen = [await runtime.freeze_zone(), await runtime.freeze_zone()]
    thawed = [await runtime.unfreeze_zone(), await runtime.unfreeze_zone()]
    assert frozen[0] == frozen[1]
    assert thawed[0] == thawed[1] == (await runtime.show_zone_lane.submit(ZoneRef(ZONE))).zone
    assert [event.type for event in await of_zone(runtime)] == ["zone.freeze", "zone.thaw"]


async def test_of_freezes_and_thaws_in_one_batch_the_last_holds_and_each_change_is_told(
    runtime: RuntimeHarness,
) -> None:
    asks = [
        SetZoneFrozen(ZONE, freezes, admin(), f"00-{place}") for place, freezes in enumerate([True, True, False, True])
    ]
    outcomes = await asyncio.gather(*map(runtime.freeze_lane.submit, asks))
    assert [zone.frozen for zone in outcomes] == [1, 1, 0, 1]
    assert (await runtime.show_zone_lane.submit(ZoneRef(ZONE))).zone == outcomes[-1]
    told = [(event.type, event.actor, event.trace) for event in await of_zone(runtime)]
    assert told == [
        ("zone.freeze", "tester", "00-0"),
        ("zone.thaw", "tester", "00-2"),
        ("zone.freeze", "tester", "00-3"),
    ]


async def test_a_replay_is_answered_while_the_zone_is_frozen_and_binds_nothing_new(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn(key="k", digest="d")
    await runtime.freeze_zone()
    again = await runtime.spawn_lane.submit(spawn_command(key="k", digest="d"))
    assert (again.created, again.session) == (False, made)
    with pytest.raises(KeyConflict):
        await runtime.spawn(key="k", digest="another")
    with pytest.raises(Frozen):
        await runtime.spawn(key="new", digest="d")
    await runtime.unfreeze_zone()
    assert (await runtime.spawn_lane.submit(spawn_command(key="new", digest="another"))).created


async def test_who_runs_in_a_frozen_zone_goes_on_and_can_be_ended(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    await runtime.freeze_zone()
    assert (await runtime.read_session(root)).status is State.ACTIVE
    assert (await runtime.terminate(root)).stopped == 2
    await runtime.put_zone(max_sessions=1)
    assert (await runtime.show_zone_lane.submit(ZoneRef(ZONE))).zone.frozen == 1, "changing its limits does not thaw it"
    assert (await runtime.read_session(child)).status is State.TERMINATED


async def test_a_zone_that_does_not_exist_can_be_neither_frozen_nor_stopped(runtime: RuntimeHarness) -> None:
    asks: list[Awaitable[object]] = [
        runtime.freeze_zone("nowhere"),
        runtime.unfreeze_zone("nowhere"),
        runtime.stop_zone("nowhere"),
    ]
    outcomes = await asyncio.gather(*asks, runtime.stop_zone("nowhere", ends=True), return_exceptions=True)
    assert result_names(outcomes) == ["zone_not_found"] * 4
    assert runtime.database.count("zones") == 1


async def test_a_token_of_an_ended_session_freezes_and_stops_nothing(runtime: RuntimeHarness) -> None:
    bearer, other = await runtime.spawn(), await runtime.spawn()
    await runtime.terminate(bearer)
    who = msgspec.structs.replace(admin(), session_id=bearer.id, is_admin=True)
    asks: list[Awaitable[object]] = [
        runtime.freeze_lane.submit(SetZoneFrozen(ZONE, True, who)),
        runtime.stop_zone_lane.submit(StopZone(ZONE, "x", who)),
        runtime.stop_zone_lane.submit(StopZone(ZONE, "x", who, ends_zone=True)),
        runtime.put_zone_lane.submit(PutZone(ZONE, "new", None, "t", bearer=who.bearer)),
        runtime.show_zone_lane.submit(ZoneRef(ZONE, who.bearer)),
    ]
    assert result_names(await asyncio.gather(*asks, return_exceptions=True)) == ["session_ended"] * 5
    assert await of_zone(runtime) == []
    assert (await runtime.read_session(other)).status is State.ACTIVE


# -- stopped


@pytest.mark.parametrize("shapes", [[(1,)], [(), (2,), ()], [(3, 2), (9,), ()]], ids=["small", "full", "large"])
async def test_a_stopped_zone_is_frozen_and_everything_in_it_has_ended(
    runtime: RuntimeHarness, shapes: list[tuple[int, ...]]
) -> None:
    made = await forest(runtime, *shapes)
    await runtime.put_zone("other")
    others = await forest(runtime, (2,), zone_id="other")
    receipt = await runtime.stop_zone()
    cascade_id = runtime.database.execute("select id from cascades")
    assert receipt == Receipt(
        ZONE,
        None,
        str(cascade_id[0][0]) if len(made) > CHUNK else None,
        "stopped",
        len(made),
        len(made),
        0,
        0,
        False,
        [],
    )
    await assert_all_ended(runtime, made)
    with pytest.raises(Frozen):
        await runtime.spawn()
    assert [(await runtime.read_session(row)).status for row in others] == [State.ACTIVE] * 3
    assert [event.type for event in await of_zone(runtime)] == ["zone.freeze"]
    assert (await runtime.show_zone_lane.submit(ZoneRef(ZONE))).sessions == 0


@DATABASE_EXAMPLES
@given(shape=shapes(12))
async def test_each_tree_of_a_stopped_zone_ends_branch_by_branch(
    runtime: RuntimeHarness, shape: list[int | None]
) -> None:
    zone_id = f"zone-{runtime.database.count('zones')}"
    await runtime.put_zone(zone_id)
    made: list[Session] = []
    for parent in shape:
        made.append(await runtime.spawn(zone_id, parent_id=None if parent is None else made[parent].id))
    receipt = await runtime.stop_zone(zone_id)
    assert (receipt.asked, receipt.stopped, receipt.left) == (len(made), len(made), [])
    order = [event.subject for event in await endings(runtime) if event.zone_id == zone_id]
    assert sorted(order) == sorted(row.id for row in made)
    for place, own in enumerate(order):
        branch = subtree_ids(own, made)
        assert set(order[place + 1 - len(branch) : place + 1]) == branch


async def test_every_event_of_a_stop_says_who_asked_with_what_trace_and_that_it_was_the_zone(
    runtime: RuntimeHarness,
) -> None:
    await forest(runtime, (6,), (1,))
    await runtime.cascade_runner.stop_zone(StopZone(ZONE, "on fire", admin(), trace="00-ab-cd-01"))
    events = [*await of_zone(runtime), *await endings(runtime)]
    assert len(events) == 10
    assert {(event.actor, event.trace) for event in events} == {("tester", "00-ab-cd-01")}
    for event in await endings(runtime):
        assert msgspec.json.decode(event.data)["cause"] == ZONE
        assert msgspec.json.decode(event.data)["reason"] == "on fire"


async def test_stopping_twice_is_a_success_that_moves_nothing(runtime: RuntimeHarness) -> None:
    await forest(runtime, (6,))
    await runtime.stop_zone()
    log = await runtime.read_log()
    assert await runtime.stop_zone(reason="again") == Receipt(ZONE, None, None, "again", 0, 0, 0, 0, False, [])
    assert await runtime.read_log() == log


async def test_an_empty_zone_can_be_stopped_and_is_frozen_then(runtime: RuntimeHarness) -> None:
    assert (await runtime.stop_zone()).asked == 0
    with pytest.raises(Frozen):
        await runtime.spawn()


async def test_a_stop_joins_a_stop_that_is_under_way(runtime: RuntimeHarness) -> None:
    made = await forest(runtime, (6,), (2,))
    first = await runtime.stop_zone_lane.submit(StopZone(ZONE, "first", admin()))
    assert (first.stopped, first.joined) == (10, False)
    second = await runtime.stop_zone(reason="second")
    assert (second.cascade_id, second.reason, second.joined) == (first.cascade_id, "first", True)
    assert second.left == []
    await assert_all_ended(runtime, made, "first")


async def test_a_stop_waits_behind_the_endings_that_are_under_way_in_the_zone(runtime: RuntimeHarness) -> None:
    made = await forest(runtime, (1, 6), (2,))
    await runtime.terminate_lane.submit(Terminate(ZONE, made[1].id, "branch", admin()))
    receipt = await runtime.stop_zone()
    assert (receipt.asked, receipt.stopped, receipt.joined, receipt.left) == (4, 4, False, [])
    await assert_all_ended(runtime, made, None)
    reasons = {row.id: (await runtime.read_session(row)).termination_reason for row in made}
    assert {own for own, reason in reasons.items() if reason == "branch"} == subtree_ids(made[1].id, made)


async def test_a_stop_left_half_way_is_finished_by_the_sweep(runtime: RuntimeHarness) -> None:
    made = await forest(runtime, (6,), (2,))
    await runtime.stop_zone_lane.submit(StopZone(ZONE, "stopped", admin()))
    assert [(await runtime.read_session(row)).status for row in made] == [State.TERMINATED] * 10
    assert await runtime.run_sweep(name=CASCADE) == 1
    await assert_all_ended(runtime, made)


async def test_what_had_expired_in_a_stopped_zone_keeps_its_reason(runtime: RuntimeHarness) -> None:
    made = await forest(runtime, (2,), (3,))
    runtime.database.expire_sessions(*made[:3])
    await runtime.stop_zone()
    reasons = [(await runtime.read_session(row)).termination_reason for row in made]
    assert reasons == ["ttl_expired"] * 3 + ["stopped"] * 4


async def test_a_zone_that_was_stopped_can_be_thawed_and_used_again(runtime: RuntimeHarness) -> None:
    await forest(runtime, (6,))
    ended = await runtime.stop_zone_lane.submit(StopZone(ZONE, "stopped", admin()))
    await runtime.unfreeze_zone()
    fresh = await runtime.spawn()
    receipt = await runtime.read_receipt(await runtime.cascade_runner.run_to_end(ended))
    assert [(left.session_id, left.reason) for left in receipt.left] == [(fresh.id, "spawned since")]
    assert receipt.stopped == 7
    assert (await runtime.read_session(fresh)).status is State.ACTIVE
    assert_counts_match_rows(runtime.database)


async def test_a_stop_takes_a_circle_of_parents_along_with_the_healthy_trees(runtime: RuntimeHarness) -> None:
    healthy, (root, child) = await runtime.spawn_tree(2), await runtime.spawn_tree(1)
    runtime.database.execute("update agent_sessions set parent_id = ? where id = ?", child.id, root.id)
    async with asyncio.timeout(30):
        receipt = await runtime.stop_zone()
    assert (receipt.stopped, receipt.left) == (5, [])
    assert runtime.database.count("agent_sessions", "status <> 'terminated'") == 0
    assert len(healthy) == 3


# -- ended


async def test_an_ended_zone_has_ended_with_everything_in_it_and_can_still_be_read(runtime: RuntimeHarness) -> None:
    made = await forest(runtime, (6,), (1,))
    receipt = await runtime.stop_zone(reason="over", ends=True)
    assert (receipt.asked, receipt.stopped, receipt.left) == (9, 9, [])
    await assert_all_ended(runtime, made, "over")
    assert [event.type for event in await of_zone(runtime)] == ["zone.freeze", "zone.end"]
    use = await runtime.show_zone_lane.submit(ZoneRef(ZONE))
    assert use.zone.ended_at is not None
    assert (use.sessions, use.concurrent) == (0, 0)
    assert len(await runtime.list_sessions()) == 9
    assert (await runtime.terminate(made[0])).already_stopped == 7


async def test_whoever_would_use_an_ended_zone_is_told_that_it_is_not_there_or_over(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn(key="k", digest="d")
    await runtime.stop_zone(ends=True)
    before, zone = await runtime.read_log(), (await runtime.show_zone_lane.submit(ZoneRef(ZONE))).zone
    for asked in (spawn_command(), spawn_command(parent_id=made.id), spawn_command(key="k", digest="d")):
        with pytest.raises(NotFound) as missing:
            await runtime.spawn_lane.submit(asked)
        assert missing.value.code == "zone_not_found"
    changes: list[Awaitable[object]] = [
        runtime.put_zone_lane.submit(PutZone(ZONE, None, None, "t")),
        runtime.put_zone_lane.submit(PutZone(ZONE, "again", Overrides(max_depth=1), "t")),
        runtime.put_zone_lane.submit(PutZone(ZONE, None, Overrides(max_depth=1), "t", create_missing=False)),
        runtime.freeze_zone(),
        runtime.unfreeze_zone(),
    ]
    for change in changes:
        with pytest.raises(Conflict) as over:
            await change
        assert (over.value.status, over.value.code) == (409, "zone_ended")
    assert await runtime.read_log() == before
    assert (await runtime.show_zone_lane.submit(ZoneRef(ZONE))).zone == zone


async def test_ending_a_zone_twice_is_a_success_that_moves_nothing(runtime: RuntimeHarness) -> None:
    await forest(runtime, (6,))
    await runtime.stop_zone(ends=True)
    log = await runtime.read_log()
    again = await runtime.stop_zone_lane.submit(StopZone(ZONE, "again", admin(), ends_zone=True))
    assert again == TerminateResult(ZONE, None, "again", 0)
    assert await runtime.stop_zone_lane.submit(StopZone(ZONE, "again", admin())) == TerminateResult(
        ZONE, None, "again", 0
    )
    assert await runtime.read_log() == log


async def test_a_stop_and_two_ends_in_one_batch_end_everything_once(runtime: RuntimeHarness) -> None:
    made = await forest(runtime, (6,), ())
    asks = [StopZone(ZONE, f"{place}", admin(), ends_zone=ends) for place, ends in enumerate([False, True, True])]
    outcomes = await asyncio.gather(*map(runtime.stop_zone_lane.submit, asks))
    assert [(ended.stopped, ended.joined) for ended in outcomes] == [(8, False), (0, True), (0, True)]
    await asyncio.gather(*map(runtime.cascade_runner.run_to_end, outcomes))
    await assert_all_ended(runtime, made, "0")
    assert [event.type for event in await of_zone(runtime)] == ["zone.freeze", "zone.end"]


async def test_a_frozen_zone_that_ends_is_not_frozen_again(runtime: RuntimeHarness) -> None:
    await runtime.freeze_zone()
    await runtime.stop_zone(ends=True)
    assert [event.type for event in await of_zone(runtime)] == ["zone.freeze", "zone.end"]


# -- beside spawns


class Pressing:
    """Callers who spawn through every replica, roots and children, each until it is refused."""

    def __init__(self, keels: list[RuntimeHarness], zone_id: str, parents: list[Session]) -> None:
        self.admitted = 0
        self.refusals: set[str] = set()
        self.under_way = asyncio.Event()
        self.done = asyncio.gather(
            *(
                self._press(keel, zone_id, parent_id)
                for keel in keels
                for parent_id in (None, *(row.id for row in parents))
            )
        )

    async def _press(self, keel: RuntimeHarness, zone_id: str, parent_id: str | None) -> None:
        while True:
            try:
                await keel.spawn(zone_id, parent_id=parent_id)
            except Problem as refused:
                self.refusals.add(refused.code)
                return
            self.admitted += 1
            if self.admitted == 20:
                self.under_way.set()


@pytest.mark.parametrize("ends", [False, True], ids=["stop", "end"])
async def test_of_spawns_through_three_replicas_nobody_is_alive_once_the_zone_is_stopped(
    postgres_url: str, ends: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        rigging = RuntimeOptions(chunk=CHUNK)
        keels = [await stack.enter_async_context(open_runtime(postgres_url, rigging)) for _ in range(3)]
        for number in range(ROUNDS):
            zone_id = f"round-{number}"
            await keels[0].put_zone(zone_id)
            made = await forest(keels[0], (1,), (1,), zone_id=zone_id)
            pressing = Pressing(keels, zone_id, made)
            await pressing.under_way.wait()
            receipts = await asyncio.gather(*(keel.stop_zone(zone_id, ends=ends) for keel in keels[:2]))
            await pressing.done
            # Whoever is judged after the commit hears of the zone first, and not of its parent.
            assert pressing.refusals == {"zone_not_found" if ends else "zone_frozen"}
            there = len(made) + pressing.admitted
            assert sum(receipt.stopped for receipt in receipts) == there
            assert all(receipt.left == [] for receipt in receipts)
            side = keels[2].database
            assert side.count("agent_sessions", "zone_id = ? and status = 'terminated'", zone_id) == there
            assert side.count("agent_sessions", "zone_id = ?", zone_id) == there
        assert_counts_match_rows(keels[0].database)
