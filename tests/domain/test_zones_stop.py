"""Zones: freeze and thaw, stop with all sessions, and end permanently."""

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
from quarterdeck.domain.zones.model import Overrides, PutZone, SetZoneFrozen, ShowZone
from quarterdeck.engine.event_log import Event
from tests.support.builders import ZONE, admin, spawn_command
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime, result_names
from tests.support.session_trees import DATABASE_EXAMPLES, shapes, subtree_ids

CHUNK = 4


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url, RuntimeOptions(chunk=CHUNK)) as runtime:
        await runtime.put_zone()
        yield runtime


async def spawn_trees(runtime: RuntimeHarness, *shapes: tuple[int, ...], zone_id: str = ZONE) -> list[Session]:
    return [row for shape in shapes for row in await runtime.spawn_tree(*shape, zone_id=zone_id)]


async def zone_events(runtime: RuntimeHarness, zone_id: str = ZONE) -> list[Event]:
    """Return the events of the zone itself, without its creation."""
    types = ("zone.freeze", "zone.thaw", "zone.end", "zone.change")
    return [e for e in await runtime.read_log() if e.subject == zone_id and e.type in types]


async def termination_events(runtime: RuntimeHarness) -> list[Event]:
    return [event for event in await runtime.read_log() if event.type == "session.terminate"]


async def assert_all_ended(runtime: RuntimeHarness, sessions: list[Session], reason: str | None = "stopped") -> None:
    for row in sessions:
        stored = await runtime.read_session(row)
        assert stored.status is State.TERMINATED
        assert reason is None or stored.termination_reason == reason
    zone_id = sessions[0].zone_id
    assert runtime.database.count("agent_sessions", "zone_id = ? and status <> 'terminated'", zone_id) == 0
    assert runtime.database.count("admission_counts", "zone_id = ? and live <> 0", zone_id) == 0
    positions = {event.subject: position for position, event in enumerate(await termination_events(runtime))}
    for row in sessions:
        if row.parent_id is not None:
            assert positions[row.id] < positions[row.parent_id]
    assert_counts_match_rows(runtime.database)


# -- frozen


async def test_frozen_zone_refuses_every_spawn_and_names_what_frees_it(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    assert (await runtime.freeze_zone()).frozen == 1
    for parent_id in (None, root.id, "unknown-session"):
        with pytest.raises(Frozen) as error:
            await runtime.spawn(parent_id=parent_id)
        assert (error.value.status, error.value.code) == (423, "zone_frozen")
        assert "thaws" in str(error.value.members["frees"])
    assert (await runtime.unfreeze_zone()).frozen == 0
    assert await runtime.spawn(parent_id=root.id)


async def test_freezing_a_zone_does_not_affect_other_zones(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    await runtime.freeze_zone()
    results = await asyncio.gather(
        *(runtime.spawn_lane.submit(spawn_command(zone_id)) for zone_id in (ZONE, "other", ZONE)),
        return_exceptions=True,
    )
    assert result_names(results) == ["zone_frozen", "Spawned", "zone_frozen"]


async def test_freezing_and_thawing_are_idempotent(runtime: RuntimeHarness) -> None:
    frozen = [await runtime.freeze_zone(), await runtime.freeze_zone()]
    thawed = [await runtime.unfreeze_zone(), await runtime.unfreeze_zone()]
    assert frozen[0] == frozen[1]
    assert thawed[0] == thawed[1] == (await runtime.show_zone_lane.submit(ShowZone(ZONE))).zone
    assert [event.type for event in await zone_events(runtime)] == ["zone.freeze", "zone.thaw"]


async def test_last_freeze_or_thaw_of_a_batch_wins_and_each_change_has_an_event(runtime: RuntimeHarness) -> None:
    commands = [
        SetZoneFrozen(ZONE, freezes, admin(), f"00-{number}")
        for number, freezes in enumerate([True, True, False, True])
    ]
    results = await asyncio.gather(*map(runtime.freeze_lane.submit, commands))
    assert [zone.frozen for zone in results] == [1, 1, 0, 1]
    assert (await runtime.show_zone_lane.submit(ShowZone(ZONE))).zone == results[-1]
    events = [(event.type, event.actor, event.trace) for event in await zone_events(runtime)]
    assert events == [
        ("zone.freeze", "tester", "00-0"),
        ("zone.thaw", "tester", "00-2"),
        ("zone.freeze", "tester", "00-3"),
    ]


async def test_frozen_zone_answers_replays_and_stores_no_new_key(runtime: RuntimeHarness) -> None:
    session = await runtime.spawn(key="k", digest="d")
    await runtime.freeze_zone()
    replayed = await runtime.spawn_lane.submit(spawn_command(key="k", digest="d"))
    assert (replayed.created, replayed.session) == (False, session)
    with pytest.raises(KeyConflict):
        await runtime.spawn(key="k", digest="another")
    with pytest.raises(Frozen):
        await runtime.spawn(key="new", digest="d")
    await runtime.unfreeze_zone()
    assert (await runtime.spawn_lane.submit(spawn_command(key="new", digest="another"))).created


async def test_sessions_of_a_frozen_zone_stay_active_and_can_be_terminated(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    await runtime.freeze_zone()
    assert (await runtime.read_session(root)).status is State.ACTIVE
    assert (await runtime.terminate(root)).stopped == 2
    await runtime.put_zone(max_sessions=1)
    assert (await runtime.show_zone_lane.submit(ShowZone(ZONE))).zone.frozen == 1, "a change of limits does not thaw it"
    assert (await runtime.read_session(child)).status is State.TERMINATED


async def test_unknown_zone_can_be_neither_frozen_nor_stopped(runtime: RuntimeHarness) -> None:
    requests: list[Awaitable[object]] = [
        runtime.freeze_zone("unknown-zone"),
        runtime.unfreeze_zone("unknown-zone"),
        runtime.stop_zone("unknown-zone"),
    ]
    results = await asyncio.gather(*requests, runtime.stop_zone("unknown-zone", ends=True), return_exceptions=True)
    assert result_names(results) == ["zone_not_found"] * 4
    assert runtime.database.count("zones") == 1


async def test_token_of_an_ended_session_can_neither_freeze_nor_stop(runtime: RuntimeHarness) -> None:
    bearer, other = await runtime.spawn(), await runtime.spawn()
    await runtime.terminate(bearer)
    ended_caller = msgspec.structs.replace(admin(), session_id=bearer.id, is_admin=True)
    requests: list[Awaitable[object]] = [
        runtime.freeze_lane.submit(SetZoneFrozen(ZONE, True, ended_caller)),
        runtime.stop_zone_lane.submit(StopZone(ZONE, "x", ended_caller)),
        runtime.stop_zone_lane.submit(StopZone(ZONE, "x", ended_caller, ends_zone=True)),
        runtime.put_zone_lane.submit(PutZone(ZONE, "new", None, "t", bearer=ended_caller.bearer)),
        runtime.show_zone_lane.submit(ShowZone(ZONE, ended_caller.bearer)),
    ]
    assert result_names(await asyncio.gather(*requests, return_exceptions=True)) == ["session_ended"] * 5
    assert await zone_events(runtime) == []
    assert (await runtime.read_session(other)).status is State.ACTIVE


# -- stopped


@pytest.mark.parametrize("shapes", [[(1,)], [(), (2,), ()], [(3, 2), (9,), ()]], ids=["small", "full", "large"])
async def test_stopped_zone_is_frozen_and_all_its_sessions_are_terminated(
    runtime: RuntimeHarness, shapes: list[tuple[int, ...]]
) -> None:
    sessions = await spawn_trees(runtime, *shapes)
    await runtime.put_zone("other")
    others = await spawn_trees(runtime, (2,), zone_id="other")
    receipt = await runtime.stop_zone()
    cascade_id = runtime.database.execute("select id from cascades")
    assert receipt == Receipt(
        ZONE,
        None,
        str(cascade_id[0][0]) if len(sessions) > CHUNK else None,
        "stopped",
        len(sessions),
        len(sessions),
        0,
        0,
        False,
        [],
    )
    await assert_all_ended(runtime, sessions)
    with pytest.raises(Frozen):
        await runtime.spawn()
    assert [(await runtime.read_session(row)).status for row in others] == [State.ACTIVE] * 3
    assert [event.type for event in await zone_events(runtime)] == ["zone.freeze"]
    assert (await runtime.show_zone_lane.submit(ShowZone(ZONE))).sessions == 0


@DATABASE_EXAMPLES
@given(shape=shapes(12))
async def test_trees_of_a_stopped_zone_end_branch_by_branch(runtime: RuntimeHarness, shape: list[int | None]) -> None:
    zone_id = f"zone-{runtime.database.count('zones')}"
    await runtime.put_zone(zone_id)
    sessions: list[Session] = []
    for parent in shape:
        sessions.append(await runtime.spawn(zone_id, parent_id=None if parent is None else sessions[parent].id))
    receipt = await runtime.stop_zone(zone_id)
    assert (receipt.asked, receipt.stopped, receipt.left) == (len(sessions), len(sessions), [])
    order = [event.subject for event in await termination_events(runtime) if event.zone_id == zone_id]
    assert sorted(order) == sorted(row.id for row in sessions)
    for position, session_id in enumerate(order):
        branch = subtree_ids(session_id, sessions)
        assert set(order[position + 1 - len(branch) : position + 1]) == branch


async def test_every_event_of_a_stop_has_actor_trace_and_the_zone_as_cause(runtime: RuntimeHarness) -> None:
    await spawn_trees(runtime, (6,), (1,))
    await runtime.cascade_runner.stop_zone(StopZone(ZONE, "on fire", admin(), trace="00-ab-cd-01"))
    events = [*await zone_events(runtime), *await termination_events(runtime)]
    assert len(events) == 10
    assert {(event.actor, event.trace) for event in events} == {("tester", "00-ab-cd-01")}
    for event in await termination_events(runtime):
        assert msgspec.json.decode(event.data)["cause"] == ZONE
        assert msgspec.json.decode(event.data)["reason"] == "on fire"


async def test_stopping_a_stopped_zone_succeeds_and_changes_nothing(runtime: RuntimeHarness) -> None:
    await spawn_trees(runtime, (6,))
    await runtime.stop_zone()
    log = await runtime.read_log()
    assert await runtime.stop_zone(reason="again") == Receipt(ZONE, None, None, "again", 0, 0, 0, 0, False, [])
    assert await runtime.read_log() == log


async def test_stopping_an_empty_zone_freezes_it(runtime: RuntimeHarness) -> None:
    assert (await runtime.stop_zone()).asked == 0
    with pytest.raises(Frozen):
        await runtime.spawn()


async def test_second_stop_joins_the_running_stop(runtime: RuntimeHarness) -> None:
    sessions = await spawn_trees(runtime, (6,), (2,))
    first = await runtime.stop_zone_lane.submit(StopZone(ZONE, "first", admin()))
    assert (first.stopped, first.joined) == (10, False)
    second = await runtime.stop_zone(reason="second")
    assert (second.cascade_id, second.reason, second.joined) == (first.cascade_id, "first", True)
    assert second.left == []
    await assert_all_ended(runtime, sessions, "first")


async def test_stop_waits_for_running_cascades_of_the_zone(runtime: RuntimeHarness) -> None:
    sessions = await spawn_trees(runtime, (1, 6), (2,))
    await runtime.terminate_lane.submit(Terminate(ZONE, sessions[1].id, "branch", admin()))
    receipt = await runtime.stop_zone()
    assert (receipt.asked, receipt.stopped, receipt.joined, receipt.left) == (4, 4, False, [])
    await assert_all_ended(runtime, sessions, None)
    reasons = {row.id: (await runtime.read_session(row)).termination_reason for row in sessions}
    assert {session_id for session_id, reason in reasons.items() if reason == "branch"} == subtree_ids(
        sessions[1].id, sessions
    )


async def test_sweep_finishes_an_interrupted_stop(runtime: RuntimeHarness) -> None:
    sessions = await spawn_trees(runtime, (6,), (2,))
    await runtime.stop_zone_lane.submit(StopZone(ZONE, "stopped", admin()))
    assert [(await runtime.read_session(row)).status for row in sessions] == [State.TERMINATED] * 10
    assert await runtime.run_sweep(name=CASCADE) == 1
    await assert_all_ended(runtime, sessions)


async def test_expired_sessions_of_a_stopped_zone_keep_their_reason(runtime: RuntimeHarness) -> None:
    sessions = await spawn_trees(runtime, (2,), (3,))
    runtime.database.expire_sessions(*sessions[:3])
    await runtime.stop_zone()
    reasons = [(await runtime.read_session(row)).termination_reason for row in sessions]
    assert reasons == ["ttl_expired"] * 3 + ["stopped"] * 4


async def test_stopped_zone_can_be_thawed_and_used_again(runtime: RuntimeHarness) -> None:
    await spawn_trees(runtime, (6,))
    result = await runtime.stop_zone_lane.submit(StopZone(ZONE, "stopped", admin()))
    await runtime.unfreeze_zone()
    new_session = await runtime.spawn()
    receipt = await runtime.read_receipt(await runtime.cascade_runner.run_to_end(result))
    assert [(left.session_id, left.reason) for left in receipt.left] == [(new_session.id, "spawned since")]
    assert receipt.stopped == 7
    assert (await runtime.read_session(new_session)).status is State.ACTIVE
    assert_counts_match_rows(runtime.database)


async def test_stop_terminates_a_cycle_of_parents_with_the_other_trees(runtime: RuntimeHarness) -> None:
    healthy, (root, child) = await runtime.spawn_tree(2), await runtime.spawn_tree(1)
    runtime.database.execute("update agent_sessions set parent_id = ? where id = ?", child.id, root.id)
    async with asyncio.timeout(30):
        receipt = await runtime.stop_zone()
    assert (receipt.stopped, receipt.left) == (5, [])
    assert runtime.database.count("agent_sessions", "status <> 'terminated'") == 0
    assert len(healthy) == 3


# -- ended


async def test_ended_zone_has_no_live_sessions_and_can_still_be_read(runtime: RuntimeHarness) -> None:
    sessions = await spawn_trees(runtime, (6,), (1,))
    receipt = await runtime.stop_zone(reason="closed", ends=True)
    assert (receipt.asked, receipt.stopped, receipt.left) == (9, 9, [])
    await assert_all_ended(runtime, sessions, "closed")
    assert [event.type for event in await zone_events(runtime)] == ["zone.freeze", "zone.end"]
    usage = await runtime.show_zone_lane.submit(ShowZone(ZONE))
    assert usage.zone.ended_at is not None
    assert (usage.sessions, usage.concurrent) == (0, 0)
    assert len(await runtime.list_sessions()) == 9
    assert (await runtime.terminate(sessions[0])).already_stopped == 7


async def test_ended_zone_refuses_spawns_and_changes(runtime: RuntimeHarness) -> None:
    session = await runtime.spawn(key="k", digest="d")
    await runtime.stop_zone(ends=True)
    before, zone = await runtime.read_log(), (await runtime.show_zone_lane.submit(ShowZone(ZONE))).zone
    for command in (spawn_command(), spawn_command(parent_id=session.id), spawn_command(key="k", digest="d")):
        with pytest.raises(NotFound) as error:
            await runtime.spawn_lane.submit(command)
        assert error.value.code == "zone_not_found"
    changes: list[Awaitable[object]] = [
        runtime.put_zone_lane.submit(PutZone(ZONE, None, None, "t")),
        runtime.put_zone_lane.submit(PutZone(ZONE, "again", Overrides(max_depth=1), "t")),
        runtime.put_zone_lane.submit(PutZone(ZONE, None, Overrides(max_depth=1), "t", create_missing=False)),
        runtime.freeze_zone(),
        runtime.unfreeze_zone(),
    ]
    for change in changes:
        with pytest.raises(Conflict) as conflict:
            await change
        assert (conflict.value.status, conflict.value.code) == (409, "zone_ended")
    assert await runtime.read_log() == before
    assert (await runtime.show_zone_lane.submit(ShowZone(ZONE))).zone == zone


async def test_ending_an_ended_zone_succeeds_and_changes_nothing(runtime: RuntimeHarness) -> None:
    await spawn_trees(runtime, (6,))
    await runtime.stop_zone(ends=True)
    log = await runtime.read_log()
    result = await runtime.stop_zone_lane.submit(StopZone(ZONE, "again", admin(), ends_zone=True))
    assert result == TerminateResult(ZONE, None, "again", 0)
    assert await runtime.stop_zone_lane.submit(StopZone(ZONE, "again", admin())) == TerminateResult(
        ZONE, None, "again", 0
    )
    assert await runtime.read_log() == log


async def test_stop_and_two_ends_in_one_batch_terminate_each_session_once(runtime: RuntimeHarness) -> None:
    sessions = await spawn_trees(runtime, (6,), ())
    commands = [StopZone(ZONE, f"{number}", admin(), ends_zone=ends) for number, ends in enumerate([False, True, True])]
    results = await asyncio.gather(*map(runtime.stop_zone_lane.submit, commands))
    assert [(result.stopped, result.joined) for result in results] == [(8, False), (0, True), (0, True)]
    await asyncio.gather(*map(runtime.cascade_runner.run_to_end, results))
    await assert_all_ended(runtime, sessions, "0")
    assert [event.type for event in await zone_events(runtime)] == ["zone.freeze", "zone.end"]


async def test_ending_a_frozen_zone_writes_no_second_freeze_event(runtime: RuntimeHarness) -> None:
    await runtime.freeze_zone()
    await runtime.stop_zone(ends=True)
    assert [event.type for event in await zone_events(runtime)] == ["zone.freeze", "zone.end"]


# -- concurrent spawns


class SpawnLoad:
    """Callers that spawn roots and children through every replica until they are refused."""

    def __init__(self, replicas: list[RuntimeHarness], zone_id: str, parents: list[Session]) -> None:
        self.admitted = 0
        self.refusals: set[str] = set()
        self.is_running = asyncio.Event()
        self.done = asyncio.gather(
            *(
                self._spawn_until_refused(replica, zone_id, parent_id)
                for replica in replicas
                for parent_id in (None, *(row.id for row in parents))
            )
        )

    async def _spawn_until_refused(self, replica: RuntimeHarness, zone_id: str, parent_id: str | None) -> None:
        while True:
            try:
                await replica.spawn(zone_id, parent_id=parent_id)
            except Problem as error:
                self.refusals.add(error.code)
                return
            self.admitted += 1
            if self.admitted == 20:
                self.is_running.set()


@pytest.mark.parametrize("ends", [False, True], ids=["stop", "end"])
async def test_no_session_is_live_after_a_stop_during_spawns_through_three_replicas(
    postgres_url: str, ends: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        options = RuntimeOptions(chunk=CHUNK)
        replicas = [await stack.enter_async_context(open_runtime(postgres_url, options)) for _ in range(3)]
        for number in range(ROUNDS):
            zone_id = f"round-{number}"
            await replicas[0].put_zone(zone_id)
            sessions = await spawn_trees(replicas[0], (1,), (1,), zone_id=zone_id)
            load = SpawnLoad(replicas, zone_id, sessions)
            await load.is_running.wait()
            receipts = await asyncio.gather(*(replica.stop_zone(zone_id, ends=ends) for replica in replicas[:2]))
            await load.done
            # A spawn after the commit is refused because of the zone, not because of its parent.
            assert load.refusals == {"zone_not_found" if ends else "zone_frozen"}
            total = len(sessions) + load.admitted
            assert sum(receipt.stopped for receipt in receipts) == total
            assert all(receipt.left == [] for receipt in receipts)
            database = replicas[2].database
            assert database.count("agent_sessions", "zone_id = ? and status = 'terminated'", zone_id) == total
            assert database.count("agent_sessions", "zone_id = ?", zone_id) == total
        assert_counts_match_rows(replicas[0].database)
