"""Fleets on both engines: whole or not at all, ids that never come again, members that are agents, one end of each
message, one monitor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.model import State
from quarterdeck.domain.fleets.model.commands import (
    ConfigureMonitor,
    CreateFleetResult,
    RegisterMemberResult,
    SetMemberPane,
)
from quarterdeck.domain.fleets.model.filters import InboxFilter
from quarterdeck.domain.fleets.model.rows import (
    MemberStatus,
    MessageState,
    MessageType,
    MonitorRuntime,
    NoticeFailure,
    Placement,
)
from quarterdeck.domain.fleets.operations import message_reads
from quarterdeck.domain.fleets.queries import LISTS
from quarterdeck.domain.tasks.model.rows import State as TaskState
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.migrate import sqlite_path
from tests.support.agents import AgentHarness, agent_caller, user_caller
from tests.support.builders import ZONE, admin
from tests.support.counting_store import CountingStore, pages_touched, sqlite_steps
from tests.support.fleets import (
    ADMINISTRATOR,
    ALICE,
    BOB,
    DIRECTOR,
    FleetHarness,
    add_acknowledged_messages,
    claim_monitor_command,
    fail_writes,
    pane_location,
)
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime, open_stores
from tests.support.tasks import TaskHarness


@pytest.fixture
def fleet_harness(runtime: RuntimeHarness) -> FleetHarness:
    return FleetHarness(runtime)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as problem:
        await asked
    return problem.value.detail


async def crewed(fleeting: FleetHarness) -> None:
    """Fleet 1 with its director, its administrator, and alice and bob in panes."""
    await fleeting.create(location=pane_location())
    for name, pane in (("alice", "%3"), ("bob", "%4")):
        await fleeting.register(name, director_id=DIRECTOR, location=pane_location(pane))


# -- whole or not at all


async def test_a_fleet_begins_whole_and_everything_in_it_at_one_instant(fleet_harness: FleetHarness) -> None:
    made = await fleet_harness.create(label="PR-42", location=pane_location())
    assert fleet_harness.count_rows() == {
        "fleet_counters": 1, "fleets": 1, "members": 2, "messages": 0, "agent_placements": 1, "monitor_config": 1,
        "monitor_runtime": 0, "agents": 1, "agent_pulses": 1,
    }  # fmt: skip
    side = fleet_harness.runtime.database
    [row] = side.execute("select fleet_id, label, created_at, deleted_at, director_agent_id from fleets")
    assert row == (1, "PR-42", made.fleet.created_at, None, DIRECTOR)
    instants = side.execute(
        "select created_at from fleets union select registered_at from members union "
        "select created_at from agent_placements"
    )
    assert instants == [(made.fleet.created_at,)]
    assert side.execute("select agent_id, registry_id from members order by agent_id") == [
        (DIRECTOR, "fleet-1-1"),
        (ADMINISTRATOR, None),
    ]


@pytest.mark.parametrize(
    ("write", "table", "when"),
    [
        ("insert", "fleets", "1 = 1"),
        ("insert", "members", "new.name = 'Director'"),
        ("insert", "agent_placements", "1 = 1"),
        ("update", "fleets", "new.director_agent_id is not null"),
        ("insert", "members", "new.name = 'Administrator'"),
        ("insert", "agents", "1 = 1"),
    ],
    ids=["fleet", "director", "placement", "reference back", "administrator", "registry"],
)
async def test_a_failure_at_any_write_of_a_beginning_leaves_nothing_and_takes_no_id(
    fleet_harness: FleetHarness, write: str, table: str, when: str
) -> None:
    before = len(await fleet_harness.runtime.read_log())
    with fail_writes(fleet_harness.runtime.database, write, table, when):
        await refused(fleet_harness.create(location=pane_location()))
    assert set(fleet_harness.count_rows().values()) == {0}
    assert len(await fleet_harness.runtime.read_log()) == before
    made = await fleet_harness.create(location=pane_location())
    assert (made.fleet.fleet_id, made.director.agent_id, made.administrator.agent_id) == (1, 1, 2)


async def test_a_fleet_and_a_member_that_come_and_go_in_one_batch_are_gone(fleet_harness: FleetHarness) -> None:
    await fleet_harness.create()
    await asyncio.gather(
        fleet_harness.create(location=pane_location()),
        fleet_harness.register(),
        fleet_harness.delete(2),
        fleet_harness.deregister(5),
    )
    side = fleet_harness.runtime.database
    assert side.execute("select fleet_id from fleets where deleted_at is null") == [(1,)]
    assert side.execute("select agent_id from members where status = 'active' order by agent_id") == [(1,), (2,)]
    assert side.execute("select id from agents where status <> 'TERMINATED' order by id") == [("fleet-1-1",)]
    assert side.count("agents") == 3
    assert side.count("agent_placements") + side.count("monitor_config") == 0


# -- ids


async def test_no_id_is_given_out_again_after_deletes_and_rollbacks_on_any_noun(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    await fleet_harness.send()
    await fleet_harness.deregister(BOB)
    with fail_writes(fleet_harness.runtime.database, "insert", "messages"):
        await refused(fleet_harness.send())
    assert (await fleet_harness.send()).task_id == 2
    with fail_writes(fleet_harness.runtime.database, "insert", "members"):
        await refused(fleet_harness.register("carol"))
    assert (await fleet_harness.register("carol")).member.agent_id == 5
    await fleet_harness.delete()
    made = await fleet_harness.create()
    assert (made.fleet.fleet_id, made.director.agent_id, made.administrator.agent_id) == (2, 6, 7)


async def test_zones_count_for_themselves_and_a_busy_one_is_not_set_back(engine_url: str) -> None:
    async with open_runtime(engine_url) as keel:
        for zone_id in (ZONE, "other"):
            await keel.put_zone(zone_id)
        own, other = FleetHarness(keel), FleetHarness(keel, "other")
        for each in (own, other):
            await crewed(each)
        ids = [(await asyncio.gather(own.send(), other.send(), other.broadcast())) for _ in range(1 + ROUNDS)]
        assert [row.task_id for row, _, _ in ids] == [*range(1, 2 + ROUNDS)]
        assert [done.message.task_id for _, _, done in ids] == [2 + 4 * n for n in range(1 + ROUNDS)]


# -- the end


async def test_a_fleet_that_is_deleted_deregisters_everybody_keeps_its_messages_and_stays_deleted(
    fleet_harness: FleetHarness,
) -> None:
    await crewed(fleet_harness)
    await fleet_harness.send()
    await fleet_harness.fleet_lane.submit(claim_monitor_command())
    done = await fleet_harness.delete()
    assert (done.deregistered_count, len(done.placements)) == (4, 3)
    again = await fleet_harness.delete()
    assert (again.deregistered_count, again.placements) == (0, ())
    assert again.fleet.deleted_at == done.fleet.deleted_at
    side = fleet_harness.runtime.database
    assert side.count("members", "status = 'active' or deregistered_at is null") == 0
    assert side.count("agents", "status <> 'TERMINATED'") == 0
    assert fleet_harness.count_rows() | {"agents": 0, "agent_pulses": 0, "fleet_counters": 0} == {
        "fleet_counters": 0, "fleets": 1, "members": 4, "messages": 1, "agent_placements": 0, "monitor_config": 0,
        "monitor_runtime": 0, "agents": 0, "agent_pulses": 0,
    }  # fmt: skip
    for asked in (fleet_harness.send(), fleet_harness.ack(1), fleet_harness.register(), fleet_harness.heartbeat()):
        assert await refused(asked) == "fleet 1 is deleted"
    told = [
        event.type for event in await fleet_harness.runtime.read_log() if event.type.startswith(("fleet.", "member."))
    ]
    assert told == ["fleet.created", *["member.registered"] * 4, *["member.deregistered"] * 4, "fleet.deleted"]


async def test_whoever_is_deregistered_can_do_nothing_and_what_it_was_sent_stays(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    row = await fleet_harness.send()
    gone = await fleet_harness.deregister(ALICE)
    assert isinstance(gone.placement, Placement)
    assert gone.placement.tmux_pane_id == "%3"
    assert gone.member.status is MemberStatus.DEREGISTERED
    nobody = f"agent {ALICE} is not a member of fleet 1."
    assert await refused(fleet_harness.ack(row.task_id)) == nobody
    assert await refused(fleet_harness.send(BOB, from_agent_id=ALICE)) == nobody
    assert await refused(fleet_harness.broadcast(from_agent_id=ALICE)) == nobody
    assert await refused(fleet_harness.send(ALICE)) == f"Destination agent not found: {ALICE}"
    assert [each.to_agent_id for each in (await fleet_harness.broadcast()).deliveries] == [BOB]
    assert fleet_harness.runtime.database.execute(
        "select status_state from messages where task_id = ?", row.task_id
    ) == [("input_required",)]
    assert (await fleet_harness.cancel(row.task_id)).status_state is MessageState.CANCELED


# -- members are agents


async def test_a_member_claims_tasks_and_what_it_held_is_taken_back_when_it_leaves(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    work, name = TaskHarness(fleet_harness.runtime), "fleet-1-3"
    task = await work.create()
    [leased] = await work.claim(name, caller=agent_caller(name))
    assert (leased.task.id, work.read_held(name)) == (task.id, 1)
    await fleet_harness.deregister(ALICE)
    assert (await AgentHarness(fleet_harness.runtime).read(name)).status is State.TERMINATED
    lost = (await work.read(task.id)).task
    assert (lost.status, lost.reason, work.read_held(name)) == (TaskState.ABORTED, "agent_terminated", 0)
    assert await refused(work.claim(name, caller=agent_caller(name)))


async def test_a_member_is_not_missed_before_it_has_spoken_and_is_from_then_on(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    agency, work = AgentHarness(fleet_harness.runtime), TaskHarness(fleet_harness.runtime)
    names = ["fleet-1-1", "fleet-1-3", "fleet-1-4"]
    assert [(await agency.read(name)).look_at for name in names] == [None] * 3
    agency.make_silent(names[0])
    assert not (await agency.read_history(names[0])).agent.look_at
    beaten = await agency.heartbeat(names[1])
    assert beaten.needs_refresh
    assert (await agency.read(names[1])).look_at == beaten.agent.last_seen_at + 180_000
    assert not (await agency.heartbeat(names[1])).needs_refresh
    await work.claim(names[2])
    claimed = await agency.read(names[2])
    assert claimed.look_at == claimed.last_seen_at + 180_000
    agency.make_silent(names[2])
    assert (await agency.refresh_status(names[2])).status is State.ERROR
    assert await agency.event_types(names[2]) == ["agent.registered", "agent.stale"]


async def test_the_ids_of_members_are_nobody_elses_and_who_had_one_before_is_heard_no_more(
    fleet_harness: FleetHarness,
) -> None:
    agency = AgentHarness(fleet_harness.runtime)
    assert "members of fleets" in await refused(agency.register("fleet-1-3"))
    await agency.register("before")
    # As one that was registered before such ids were kept.
    side = fleet_harness.runtime.database
    for table, column in (("agents", "id"), ("agent_pulses", "agent_id")):
        side.execute(f"update {table} set {column} = 'fleet-1-1' where {column} = 'before'")
    before = await agency.read("fleet-1-1")
    await fleet_harness.create()
    after = await agency.read("fleet-1-1")
    assert after.created_at > before.created_at, "tokens of the one before are another's"
    assert (after.name, after.status, after.look_at) == ("Director", State.IDLE, None)


# -- messages


async def test_a_broadcast_is_one_commit_and_is_handed_on_after_it(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    with fail_writes(fleet_harness.runtime.database, "insert", "messages", f"new.to_agent_id = {BOB}"):
        await refused(fleet_harness.broadcast())
    assert (fleet_harness.count_rows()["messages"], fleet_harness.delivered) == (0, [])
    done = await fleet_harness.broadcast(idempotency_key="k", request_digest="d", from_agent_id=ADMINISTRATOR)
    assert [row.to_agent_id for row in done.deliveries] == [DIRECTOR, ALICE, BOB]
    assert fleet_harness.delivered == [*done.deliveries]
    assert fleet_harness.runtime.database.execute(
        "select task_id, to_agent_id, type, status_state, origin_task_id from messages order by task_id"
    ) == [
        (1, 0, MessageType.SUMMARY, MessageState.COMPLETED, 1),
        *[(1 + to_place, to, "unicast", "input_required", 1) for to_place, to in enumerate((1, 3, 4), 1)],
    ]
    await fleet_harness.ack(2, DIRECTOR)
    again = await fleet_harness.broadcast(idempotency_key="k", request_digest="d", from_agent_id=ADMINISTRATOR)
    assert (again.created, again.message) == (False, done.message)
    assert [row.status_state for row in again.deliveries] == ["completed", "input_required", "input_required"]
    assert (fleet_harness.count_rows()["messages"], len(fleet_harness.delivered)) == (4, 3)


async def test_the_log_tells_who_spoke_to_whom_and_never_what_was_said(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    await fleet_harness.send(text="the secret")
    await fleet_harness.ack(1)
    told = [event for event in await fleet_harness.runtime.read_log() if event.type.startswith("message.")]
    assert [(event.type, event.subject, event.to_state) for event in told] == [
        ("message.sent", "1", "input_required"),
        ("message.acknowledged", "1", "completed"),
    ]
    assert not [event for event in await fleet_harness.runtime.read_log() if "secret" in event.data]


async def test_a_receipt_moves_neither_time_nor_state_and_an_end_keeps_the_receipt(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    row = await fleet_harness.send()
    typed = await fleet_harness.receipt(row.task_id)
    assert typed.notified_at is not None
    done = await fleet_harness.ack(row.task_id)
    assert (done.notified_at, done.created_at) == (typed.notified_at, row.created_at)
    other = await fleet_harness.send(BOB)
    canceled = await fleet_harness.cancel(other.task_id)
    late = await fleet_harness.receipt(other.task_id, NoticeFailure.PANE_GONE)
    stored = fleet_harness.runtime.database.execute(
        "select created_at, status_state, status_timestamp, notified_at, notice from messages order by task_id"
    )
    assert stored == [
        (row.created_at, "completed", done.status_timestamp, typed.notified_at, None),
        (other.created_at, "canceled", canceled.status_timestamp, None, "pane_gone"),
    ]
    assert late.status_timestamp == canceled.status_timestamp


async def test_what_is_sent_and_acknowledged_in_one_batch_is_stored_as_it_is(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    await asyncio.gather(fleet_harness.send(), fleet_harness.ack(1), fleet_harness.receipt(1))
    assert fleet_harness.runtime.database.execute("select status_state, notice from messages") == [("completed", None)]


async def test_a_panes_token_acts_as_its_own_member_alone_and_changes_no_fleet(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    alice = agent_caller("fleet-1-3")
    assert (await fleet_harness.send(BOB, from_agent_id=ALICE, caller=alice)).from_agent_id == ALICE
    assert await refused(fleet_harness.send(BOB, caller=alice)) == f"This token cannot act as agent {DIRECTOR}"
    assert await refused(fleet_harness.ack(1, BOB, caller=alice)) == f"This token cannot act as agent {BOB}"
    assert "may not do this" in await refused(
        fleet_harness.fleet_lane.submit(fleet_harness.register_command(caller=alice))
    )
    assert "may not do this" in await refused(
        fleet_harness.fleet_lane.submit(fleet_harness.create_command(caller=alice))
    )
    assert isinstance(
        await fleet_harness.fleet_lane.submit(fleet_harness.create_command(caller=user_caller())), CreateFleetResult
    )


async def test_whoever_is_of_another_zone_finds_no_fleet_there(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    own, other = FleetHarness(runtime), FleetHarness(runtime, "other")
    await crewed(own)
    await other.create()
    foreign = admin("other")
    assert "no workspace" in await refused(own.send(caller=foreign))
    assert "no workspace" in await refused(own.fleet_lane.submit(own.register_command(caller=foreign)))
    assert await refused(other.send(ALICE)) == f"Destination agent not found: {ALICE}"
    assert await refused(other.send(fleet_id=7)) == "fleet 7 not found."


async def test_an_empty_poll_costs_no_more_after_20000_acknowledged_messages_than_before_the_first(
    engine_url: str,
) -> None:
    """By what the engine does for it, which does not depend on the clock: pages, or steps of its machine."""
    own, everywhere = await open_stores(engine_url)
    counting = CountingStore(own)
    try:
        keel = RuntimeHarness(engine_url, (counting, everywhere), RuntimeOptions())
        await keel.put_zone()
        await crewed(FleetHarness(keel))
        before = await polled(keel, counting)
        add_acknowledged_messages(keel.database, 20_000)
        after = await polled(keel, counting)
        assert {name: cost for name, cost in after.items() if cost > 1.3 * before[name]} == {}
    finally:
        for store in {own, everywhere}:
            await store.close()


async def polled(keel: RuntimeHarness, counting: CountingStore) -> dict[str, int]:
    """What each statement costs that a poll asks, and whoever waits or counts beside it."""
    counting.take_counts()
    poll = InboxFilter(
        zone_id=ZONE, caller=admin(), fleet_id=1, agent_id=ALICE, limit=101, state=MessageState.INPUT_REQUIRED
    )
    oldest = msgspec.structs.replace(poll, oldest_first=True)
    of_member: list[tuple[object, ...]] = [(ZONE, ALICE)]
    beside = (LISTS.messages_newest_unread(batch=of_member), LISTS.messages_unread_counts(batch=of_member))

    async def ask(tx: Transaction) -> None:
        for wanted in (poll, oldest):
            assert (await message_reads.list_inbox(tx, wanted)).messages == []
        await tx.read(*beside)

    await keel.engine.read(ask, zones=[ZONE])
    return (sqlite_steps if sqlite_path(keel.url) else pages_touched)(keel.url, counting.take_counts())


async def test_what_is_asked_of_one_member_reads_as_much_in_a_large_fleet_as_in_a_small_one(engine_url: str) -> None:
    own, everywhere = await open_stores(engine_url)
    counting = CountingStore(own)
    keel = RuntimeHarness(engine_url, (counting, everywhere), RuntimeOptions())
    try:
        await keel.put_zone()
        fleeting = FleetHarness(keel)
        await crewed(fleeting)
        await fleeting.fleet_lane.submit(claim_monitor_command())
        small = await read_by_each(fleeting, counting, ALICE)
        for _ in range(20):
            await fleeting.register()
        assert await read_by_each(fleeting, counting, BOB) == small
        counting.take_counts()
        await fleeting.delete()
        assert counting.take_counts().statements_sent["members_of_fleets"] == 1
    finally:
        for store in {own, everywhere}:
            await store.close()


async def read_by_each(fleeting: FleetHarness, counting: CountingStore, agent_id: int) -> dict[str, tuple[int, int]]:
    """By verb: statements that were sent, and rows that came back."""
    configure = ConfigureMonitor(zone_id=ZONE, caller=admin(), fleet_id=1, agent_id=agent_id, enabled=False)
    asks: dict[str, Callable[[], Awaitable[object]]] = {
        "register": lambda: fleeting.register(director_id=DIRECTOR, location=pane_location("%5")),
        "configure": lambda: fleeting.fleet_lane.submit(configure),
        "beat": lambda: fleeting.heartbeat(agent_id),
        "deregister": lambda: fleeting.deregister(agent_id),
    }
    found: dict[str, tuple[int, int]] = {}
    for verb, ask in asks.items():
        counting.take_counts()
        await ask()
        counts = counting.take_counts()
        assert "members_of_fleets" not in counts.statements_sent, verb
        found[verb] = (counts.statements_sent.total(), counts.rows_returned)
    return found


# -- placements and the monitor


async def test_a_pane_is_said_once_and_the_key_of_a_member_shows_it_with_its_pane(fleet_harness: FleetHarness) -> None:
    await fleet_harness.create(location=pane_location())
    made = await fleet_harness.register(
        location=pane_location(None), director_id=DIRECTOR, idempotency_key="k", request_digest="d"
    )
    ask = SetMemberPane(zone_id=ZONE, caller=admin(), fleet_id=1, agent_id=made.member.agent_id, pane_id="%9")
    there = await fleet_harness.fleet_lane.submit(ask)
    assert there == await fleet_harness.fleet_lane.submit(ask)
    again = await fleet_harness.fleet_lane.submit(
        fleet_harness.register_command(
            location=pane_location(None), director_id=DIRECTOR, idempotency_key="k", request_digest="d"
        )
    )
    assert isinstance(again, RegisterMemberResult)
    assert (again.created, again.member, again.placement) == (False, made.member, there)


async def test_a_heartbeat_is_its_owners_and_keeps_whom_it_pinged(fleet_harness: FleetHarness) -> None:
    await crewed(fleet_harness)
    await fleet_harness.fleet_lane.submit(claim_monitor_command())
    beaten = await fleet_harness.heartbeat(ALICE)
    assert isinstance(beaten, MonitorRuntime)
    assert fleet_harness.runtime.database.execute(
        "select agent_id, last_ping_at from monitor_config where last_ping_at is not null"
    ) == [(ALICE, beaten.last_tick_at)]
    assert await refused(fleet_harness.heartbeat(BOB, pid=7)) == "this process does not monitor fleet 1 any more"
