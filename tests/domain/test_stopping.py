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
from tests.support.asking import ZONE, admin, ask
from tests.support.keel import Keel, Rigging, assert_counts_are_what_the_rows_say, codes, keel_on
from tests.support.members import ON_A_DATABASE, below, shapes
from tests.support.rounds import ROUNDS

CHUNK = 4


@pytest.fixture
async def keel(engine_url: str) -> AsyncIterator[Keel]:
    async with keel_on(engine_url, Rigging(chunk=CHUNK)) as laid:
        await laid.zone()
        yield laid


async def forest(keel: Keel, *shapes: tuple[int, ...], zone_id: str = ZONE) -> list[Session]:
    return [row for shape in shapes for row in await keel.tree(*shape, zone_id=zone_id)]


async def of_zone(keel: Keel, zone_id: str = ZONE) -> list[Event]:
    """What became of the zone itself, since it was made."""
    wanted = ("zone.freeze", "zone.thaw", "zone.end", "zone.change")
    return [e for e in await keel.log() if e.subject == zone_id and e.type in wanted]


async def endings(keel: Keel) -> list[Event]:
    return [event for event in await keel.log() if event.type == "session.terminate"]


async def assert_all_ended(keel: Keel, sessions: list[Session], reason: str | None = "stopped") -> None:
    for row in sessions:
        shown = await keel.show(row)
        assert shown.status is State.TERMINATED
        assert reason is None or shown.termination_reason == reason
    zone_id = sessions[0].zone_id
    assert keel.side.count("agent_sessions", "zone_id = ? and status <> 'terminated'", zone_id) == 0
    assert keel.side.count("admission_counts", "zone_id = ? and live <> 0", zone_id) == 0
    places = {event.subject: place for place, event in enumerate(await endings(keel))}
    for row in sessions:
        if row.parent_id is not None:
            assert places[row.id] < places[row.parent_id]
    assert_counts_are_what_the_rows_say(keel.side)


# -- frozen


async def test_a_frozen_zone_refuses_every_spawn_and_says_what_frees_it(keel: Keel) -> None:
    root = await keel.spawn()
    assert (await keel.freeze()).frozen == 1
    for parent_id in (None, root.id, "nobody"):
        with pytest.raises(Frozen) as refused:
            await keel.spawn(parent_id=parent_id)
        assert (refused.value.status, refused.value.code) == (423, "zone_frozen")
        assert "thaws" in str(refused.value.members["frees"])
    assert (await keel.thaw()).frozen == 0
    assert await keel.spawn(parent_id=root.id)


async def test_freezing_one_zone_is_nothing_to_another(keel: Keel) -> None:
    await keel.zone("other")
    await keel.freeze()
    outcomes = await asyncio.gather(
        *(keel.spawns.submit(ask(zone_id)) for zone_id in (ZONE, "other", ZONE)), return_exceptions=True
    )
    assert codes(outcomes) == ["zone_frozen", "Spawned", "zone_frozen"]


async def test_freezing_and_thawing_twice_change_nothing_the_second_time(keel: Keel) -> None:
    frozen = [await keel.freeze(), await keel.freeze()]
    thawed = [await keel.thaw(), await keel.thaw()]
    assert frozen[0] == frozen[1]
    assert thawed[0] == thawed[1] == (await keel.used.submit(ZoneRef(ZONE))).zone
    assert [event.type for event in await of_zone(keel)] == ["zone.freeze", "zone.thaw"]


async def test_of_freezes_and_thaws_in_one_batch_the_last_holds_and_each_change_is_told(keel: Keel) -> None:
    asks = [
        SetZoneFrozen(ZONE, freezes, admin(), f"00-{place}") for place, freezes in enumerate([True, True, False, True])
    ]
    outcomes = await asyncio.gather(*map(keel.freezes.submit, asks))
    assert [zone.frozen for zone in outcomes] == [1, 1, 0, 1]
    assert (await keel.used.submit(ZoneRef(ZONE))).zone == outcomes[-1]
    told = [(event.type, event.actor, event.trace) for event in await of_zone(keel)]
    assert told == [
        ("zone.freeze", "tester", "00-0"),
        ("zone.thaw", "tester", "00-2"),
        ("zone.freeze", "tester", "00-3"),
    ]


async def test_a_replay_is_answered_while_the_zone_is_frozen_and_binds_nothing_new(keel: Keel) -> None:
    made = await keel.spawn(key="k", digest="d")
    await keel.freeze()
    again = await keel.spawns.submit(ask(key="k", digest="d"))
    assert (again.created, again.session) == (False, made)
    with pytest.raises(KeyConflict):
        await keel.spawn(key="k", digest="another")
    with pytest.raises(Frozen):
        await keel.spawn(key="new", digest="d")
    await keel.thaw()
    assert (await keel.spawns.submit(ask(key="new", digest="another"))).created


async def test_who_runs_in_a_frozen_zone_goes_on_and_can_be_ended(keel: Keel) -> None:
    root, child = await keel.tree(1)
    await keel.freeze()
    assert (await keel.show(root)).status is State.ACTIVE
    assert (await keel.end(root)).stopped == 2
    await keel.zone(max_sessions=1)
    assert (await keel.used.submit(ZoneRef(ZONE))).zone.frozen == 1, "changing its limits does not thaw it"
    assert (await keel.show(child)).status is State.TERMINATED


async def test_a_zone_that_does_not_exist_can_be_neither_frozen_nor_stopped(keel: Keel) -> None:
    asks: list[Awaitable[object]] = [keel.freeze("nowhere"), keel.thaw("nowhere"), keel.stop("nowhere")]
    outcomes = await asyncio.gather(*asks, keel.stop("nowhere", ends=True), return_exceptions=True)
    assert codes(outcomes) == ["zone_not_found"] * 4
    assert keel.side.count("zones") == 1


async def test_a_token_of_an_ended_session_freezes_and_stops_nothing(keel: Keel) -> None:
    bearer, other = await keel.spawn(), await keel.spawn()
    await keel.end(bearer)
    who = msgspec.structs.replace(admin(), session_id=bearer.id, is_admin=True)
    asks: list[Awaitable[object]] = [
        keel.freezes.submit(SetZoneFrozen(ZONE, True, who)),
        keel.stops.submit(StopZone(ZONE, "x", who)),
        keel.stops.submit(StopZone(ZONE, "x", who, ends_zone=True)),
        keel.zones.submit(PutZone(ZONE, "new", None, "t", bearer=who.bearer)),
        keel.used.submit(ZoneRef(ZONE, who.bearer)),
    ]
    assert codes(await asyncio.gather(*asks, return_exceptions=True)) == ["session_ended"] * 5
    assert await of_zone(keel) == []
    assert (await keel.show(other)).status is State.ACTIVE


# -- stopped


@pytest.mark.parametrize("shapes", [[(1,)], [(), (2,), ()], [(3, 2), (9,), ()]], ids=["small", "full", "large"])
async def test_a_stopped_zone_is_frozen_and_everything_in_it_has_ended(
    keel: Keel, shapes: list[tuple[int, ...]]
) -> None:
    made = await forest(keel, *shapes)
    await keel.zone("other")
    others = await forest(keel, (2,), zone_id="other")
    receipt = await keel.stop()
    cascade_id = keel.side.run("select id from cascades")
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
    await assert_all_ended(keel, made)
    with pytest.raises(Frozen):
        await keel.spawn()
    assert [(await keel.show(row)).status for row in others] == [State.ACTIVE] * 3
    assert [event.type for event in await of_zone(keel)] == ["zone.freeze"]
    assert (await keel.used.submit(ZoneRef(ZONE))).sessions == 0


@ON_A_DATABASE
@given(shape=shapes(12))
async def test_each_tree_of_a_stopped_zone_ends_branch_by_branch(keel: Keel, shape: list[int | None]) -> None:
    zone_id = f"zone-{keel.side.count('zones')}"
    await keel.zone(zone_id)
    made: list[Session] = []
    for parent in shape:
        made.append(await keel.spawn(zone_id, parent_id=None if parent is None else made[parent].id))
    receipt = await keel.stop(zone_id)
    assert (receipt.asked, receipt.stopped, receipt.left) == (len(made), len(made), [])
    order = [event.subject for event in await endings(keel) if event.zone_id == zone_id]
    assert sorted(order) == sorted(row.id for row in made)
    for place, own in enumerate(order):
        branch = below(own, made)
        assert set(order[place + 1 - len(branch) : place + 1]) == branch


async def test_every_event_of_a_stop_says_who_asked_with_what_trace_and_that_it_was_the_zone(keel: Keel) -> None:
    await forest(keel, (6,), (1,))
    await keel.finisher.stop_zone(StopZone(ZONE, "on fire", admin(), trace="00-ab-cd-01"))
    events = [*await of_zone(keel), *await endings(keel)]
    assert len(events) == 10
    assert {(event.actor, event.trace) for event in events} == {("tester", "00-ab-cd-01")}
    for event in await endings(keel):
        assert msgspec.json.decode(event.data)["cause"] == ZONE
        assert msgspec.json.decode(event.data)["reason"] == "on fire"


async def test_stopping_twice_is_a_success_that_moves_nothing(keel: Keel) -> None:
    await forest(keel, (6,))
    await keel.stop()
    log = await keel.log()
    assert await keel.stop(reason="again") == Receipt(ZONE, None, None, "again", 0, 0, 0, 0, False, [])
    assert await keel.log() == log


async def test_an_empty_zone_can_be_stopped_and_is_frozen_then(keel: Keel) -> None:
    assert (await keel.stop()).asked == 0
    with pytest.raises(Frozen):
        await keel.spawn()


async def test_a_stop_joins_a_stop_that_is_under_way(keel: Keel) -> None:
    made = await forest(keel, (6,), (2,))
    first = await keel.stops.submit(StopZone(ZONE, "first", admin()))
    assert (first.stopped, first.joined) == (10, False)
    second = await keel.stop(reason="second")
    assert (second.cascade_id, second.reason, second.joined) == (first.cascade_id, "first", True)
    assert second.left == []
    await assert_all_ended(keel, made, "first")


async def test_a_stop_waits_behind_the_endings_that_are_under_way_in_the_zone(keel: Keel) -> None:
    made = await forest(keel, (1, 6), (2,))
    await keel.endings.submit(Terminate(ZONE, made[1].id, "branch", admin()))
    receipt = await keel.stop()
    assert (receipt.asked, receipt.stopped, receipt.joined, receipt.left) == (4, 4, False, [])
    await assert_all_ended(keel, made, None)
    reasons = {row.id: (await keel.show(row)).termination_reason for row in made}
    assert {own for own, reason in reasons.items() if reason == "branch"} == below(made[1].id, made)


async def test_a_stop_left_half_way_is_finished_by_the_sweep(keel: Keel) -> None:
    made = await forest(keel, (6,), (2,))
    await keel.stops.submit(StopZone(ZONE, "stopped", admin()))
    assert [(await keel.show(row)).status for row in made] == [State.TERMINATED] * 10
    assert await keel.sweep(name=CASCADE) == 1
    await assert_all_ended(keel, made)


async def test_what_had_expired_in_a_stopped_zone_keeps_its_reason(keel: Keel) -> None:
    made = await forest(keel, (2,), (3,))
    keel.side.expire(*made[:3])
    await keel.stop()
    reasons = [(await keel.show(row)).termination_reason for row in made]
    assert reasons == ["ttl_expired"] * 3 + ["stopped"] * 4


async def test_a_zone_that_was_stopped_can_be_thawed_and_used_again(keel: Keel) -> None:
    await forest(keel, (6,))
    ended = await keel.stops.submit(StopZone(ZONE, "stopped", admin()))
    await keel.thaw()
    fresh = await keel.spawn()
    receipt = await keel.receipt(await keel.finisher.run_to_end(ended))
    assert [(left.session_id, left.reason) for left in receipt.left] == [(fresh.id, "spawned since")]
    assert receipt.stopped == 7
    assert (await keel.show(fresh)).status is State.ACTIVE
    assert_counts_are_what_the_rows_say(keel.side)


async def test_a_stop_takes_a_circle_of_parents_along_with_the_healthy_trees(keel: Keel) -> None:
    healthy, (root, child) = await keel.tree(2), await keel.tree(1)
    keel.side.run("update agent_sessions set parent_id = ? where id = ?", child.id, root.id)
    async with asyncio.timeout(30):
        receipt = await keel.stop()
    assert (receipt.stopped, receipt.left) == (5, [])
    assert keel.side.count("agent_sessions", "status <> 'terminated'") == 0
    assert len(healthy) == 3


# -- ended


async def test_an_ended_zone_has_ended_with_everything_in_it_and_can_still_be_read(keel: Keel) -> None:
    made = await forest(keel, (6,), (1,))
    receipt = await keel.stop(reason="over", ends=True)
    assert (receipt.asked, receipt.stopped, receipt.left) == (9, 9, [])
    await assert_all_ended(keel, made, "over")
    assert [event.type for event in await of_zone(keel)] == ["zone.freeze", "zone.end"]
    use = await keel.used.submit(ZoneRef(ZONE))
    assert use.zone.ended_at is not None
    assert (use.sessions, use.concurrent) == (0, 0)
    assert len(await keel.page()) == 9
    assert (await keel.end(made[0])).already_stopped == 7


async def test_whoever_would_use_an_ended_zone_is_told_that_it_is_not_there_or_over(keel: Keel) -> None:
    made = await keel.spawn(key="k", digest="d")
    await keel.stop(ends=True)
    before, zone = await keel.log(), (await keel.used.submit(ZoneRef(ZONE))).zone
    for asked in (ask(), ask(parent_id=made.id), ask(key="k", digest="d")):
        with pytest.raises(NotFound) as missing:
            await keel.spawns.submit(asked)
        assert missing.value.code == "zone_not_found"
    changes: list[Awaitable[object]] = [
        keel.zones.submit(PutZone(ZONE, None, None, "t")),
        keel.zones.submit(PutZone(ZONE, "again", Overrides(max_depth=1), "t")),
        keel.zones.submit(PutZone(ZONE, None, Overrides(max_depth=1), "t", create_missing=False)),
        keel.freeze(),
        keel.thaw(),
    ]
    for change in changes:
        with pytest.raises(Conflict) as over:
            await change
        assert (over.value.status, over.value.code) == (409, "zone_ended")
    assert await keel.log() == before
    assert (await keel.used.submit(ZoneRef(ZONE))).zone == zone


async def test_ending_a_zone_twice_is_a_success_that_moves_nothing(keel: Keel) -> None:
    await forest(keel, (6,))
    await keel.stop(ends=True)
    log = await keel.log()
    again = await keel.stops.submit(StopZone(ZONE, "again", admin(), ends_zone=True))
    assert again == TerminateResult(ZONE, None, "again", 0)
    assert await keel.stops.submit(StopZone(ZONE, "again", admin())) == TerminateResult(ZONE, None, "again", 0)
    assert await keel.log() == log


async def test_a_stop_and_two_ends_in_one_batch_end_everything_once(keel: Keel) -> None:
    made = await forest(keel, (6,), ())
    asks = [StopZone(ZONE, f"{place}", admin(), ends_zone=ends) for place, ends in enumerate([False, True, True])]
    outcomes = await asyncio.gather(*map(keel.stops.submit, asks))
    assert [(ended.stopped, ended.joined) for ended in outcomes] == [(8, False), (0, True), (0, True)]
    await asyncio.gather(*map(keel.finisher.run_to_end, outcomes))
    await assert_all_ended(keel, made, "0")
    assert [event.type for event in await of_zone(keel)] == ["zone.freeze", "zone.end"]


async def test_a_frozen_zone_that_ends_is_not_frozen_again(keel: Keel) -> None:
    await keel.freeze()
    await keel.stop(ends=True)
    assert [event.type for event in await of_zone(keel)] == ["zone.freeze", "zone.end"]


# -- beside spawns


class Pressing:
    """Callers who spawn through every replica, roots and children, each until it is refused."""

    def __init__(self, keels: list[Keel], zone_id: str, parents: list[Session]) -> None:
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

    async def _press(self, keel: Keel, zone_id: str, parent_id: str | None) -> None:
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
        rigging = Rigging(chunk=CHUNK)
        keels = [await stack.enter_async_context(keel_on(postgres_url, rigging)) for _ in range(3)]
        for number in range(ROUNDS):
            zone_id = f"round-{number}"
            await keels[0].zone(zone_id)
            made = await forest(keels[0], (1,), (1,), zone_id=zone_id)
            pressing = Pressing(keels, zone_id, made)
            await pressing.under_way.wait()
            receipts = await asyncio.gather(*(keel.stop(zone_id, ends=ends) for keel in keels[:2]))
            await pressing.done
            # Whoever is judged after the commit hears of the zone first, and not of its parent.
            assert pressing.refusals == {"zone_not_found" if ends else "zone_frozen"}
            there = len(made) + pressing.admitted
            assert sum(receipt.stopped for receipt in receipts) == there
            assert all(receipt.left == [] for receipt in receipts)
            side = keels[2].side
            assert side.count("agent_sessions", "zone_id = ? and status = 'terminated'", zone_id) == there
            assert side.count("agent_sessions", "zone_id = ?", zone_id) == there
        assert_counts_are_what_the_rows_say(keels[0].side)
