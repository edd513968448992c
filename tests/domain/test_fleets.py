"""Fleets on both engines: atomic creation, ids that are never reused, members as agents, messages, one monitor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from quarterdeck.domain.agents.model import State
from quarterdeck.domain.fleets.model.commands import (
    ConfigureMonitor,
    CreateFleetResult,
    RegisterMemberResult,
    SetMemberPane,
)
from quarterdeck.domain.fleets.model.filters import FleetRequest, InboxFilter
from quarterdeck.domain.fleets.model.rows import (
    Member,
    MemberStatus,
    MessageState,
    MessageType,
    MonitorRuntime,
    NoticeFailure,
    Placement,
)
from quarterdeck.domain.fleets.operations import fleet_reads, message_reads
from quarterdeck.domain.fleets.queries import LISTS
from quarterdeck.domain.tasks.model.rows import State as TaskState
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.sql import BoundStatement
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
from tests.support.outcomes import problem_detail
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime, open_stores
from tests.support.tasks import TaskHarness


@pytest.fixture
def fleet_harness(runtime: RuntimeHarness) -> FleetHarness:
    return FleetHarness(runtime)


async def create_fleet_with_members(harness: FleetHarness) -> None:
    """Fleet 1 with its director, its administrator, and alice and bob in panes."""
    await harness.create(location=pane_location())
    for name, pane in (("alice", "%3"), ("bob", "%4")):
        await harness.register(name, director_id=DIRECTOR, location=pane_location(pane))


# -- atomic creation


async def test_fleet_is_created_completely_with_one_timestamp(fleet_harness: FleetHarness) -> None:
    created = await fleet_harness.create(label="PR-42", location=pane_location())
    assert fleet_harness.count_rows() == {
        "fleet_counters": 1, "fleets": 1, "members": 2, "messages": 0, "agent_placements": 1, "monitor_config": 1,
        "monitor_runtime": 0, "agents": 1, "agent_pulses": 1,
    }  # fmt: skip
    database = fleet_harness.runtime.database
    [row] = database.execute("select fleet_id, label, created_at, deleted_at, director_agent_id from fleets")
    assert row == (1, "PR-42", created.fleet.created_at, None, DIRECTOR)
    timestamps = database.execute(
        "select created_at from fleets union select registered_at from members union "
        "select created_at from agent_placements"
    )
    assert timestamps == [(created.fleet.created_at,)]
    assert database.execute("select agent_id, registry_id from members order by agent_id") == [
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
    ids=["fleet", "director", "placement", "director reference", "administrator", "registry"],
)
async def test_failed_fleet_creation_leaves_no_rows_and_uses_no_id(
    fleet_harness: FleetHarness, write: str, table: str, when: str
) -> None:
    before = len(await fleet_harness.runtime.read_log())
    with fail_writes(fleet_harness.runtime.database, write, table, when):
        await problem_detail(fleet_harness.create(location=pane_location()))
    assert set(fleet_harness.count_rows().values()) == {0}
    assert len(await fleet_harness.runtime.read_log()) == before
    created = await fleet_harness.create(location=pane_location())
    assert (created.fleet.fleet_id, created.director.agent_id, created.administrator.agent_id) == (1, 1, 2)


async def test_fleet_and_member_created_and_deleted_in_one_batch_are_gone(fleet_harness: FleetHarness) -> None:
    await fleet_harness.create()
    await asyncio.gather(
        fleet_harness.create(location=pane_location()),
        fleet_harness.register(),
        fleet_harness.delete(2),
        fleet_harness.deregister(5),
    )
    database = fleet_harness.runtime.database
    assert database.execute("select fleet_id from fleets where deleted_at is null") == [(1,)]
    assert database.execute("select agent_id from members where status = 'active' order by agent_id") == [(1,), (2,)]
    assert database.execute("select id from agents where status <> 'TERMINATED' order by id") == [("fleet-1-1",)]
    assert database.count("agents") == 3
    assert database.count("agent_placements") + database.count("monitor_config") == 0


# -- ids


async def test_ids_are_not_reused_after_deletes_or_rollbacks(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    await fleet_harness.send()
    await fleet_harness.deregister(BOB)
    with fail_writes(fleet_harness.runtime.database, "insert", "messages"):
        await problem_detail(fleet_harness.send())
    assert (await fleet_harness.send()).task_id == 2
    with fail_writes(fleet_harness.runtime.database, "insert", "members"):
        await problem_detail(fleet_harness.register("carol"))
    assert (await fleet_harness.register("carol")).member.agent_id == 5
    await fleet_harness.delete()
    created = await fleet_harness.create()
    assert (created.fleet.fleet_id, created.director.agent_id, created.administrator.agent_id) == (2, 6, 7)


async def test_ids_are_counted_per_zone_under_concurrency(engine_url: str) -> None:
    async with open_runtime(engine_url) as runtime:
        for zone_id in (ZONE, "other"):
            await runtime.put_zone(zone_id)
        first, second = FleetHarness(runtime), FleetHarness(runtime, "other")
        for harness in (first, second):
            await create_fleet_with_members(harness)
        ids = [(await asyncio.gather(first.send(), second.send(), second.broadcast())) for _ in range(1 + ROUNDS)]
        assert [row.task_id for row, _, _ in ids] == [*range(1, 2 + ROUNDS)]
        assert [broadcast.message.task_id for _, _, broadcast in ids] == [2 + 4 * n for n in range(1 + ROUNDS)]


# -- deletion


async def test_deleted_fleet_deregisters_its_members_and_keeps_its_messages(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    await fleet_harness.send()
    await fleet_harness.submit_fleet(claim_monitor_command())
    deleted = await fleet_harness.delete()
    assert (deleted.deregistered_count, len(deleted.placements)) == (4, 3)
    repeated = await fleet_harness.delete()
    assert (repeated.deregistered_count, repeated.placements) == (0, ())
    assert repeated.fleet.deleted_at == deleted.fleet.deleted_at
    database = fleet_harness.runtime.database
    assert database.count("members", "status = 'active' or deregistered_at is null") == 0
    assert database.count("agents", "status <> 'TERMINATED'") == 0
    assert fleet_harness.count_rows() | {"agents": 0, "agent_pulses": 0, "fleet_counters": 0} == {
        "fleet_counters": 0, "fleets": 1, "members": 4, "messages": 1, "agent_placements": 0, "monitor_config": 0,
        "monitor_runtime": 0, "agents": 0, "agent_pulses": 0,
    }  # fmt: skip
    for request in (fleet_harness.send(), fleet_harness.ack(1), fleet_harness.register(), fleet_harness.heartbeat()):
        assert await problem_detail(request) == "fleet 1 is deleted"
    event_types = [
        event.type for event in await fleet_harness.runtime.read_log() if event.type.startswith(("fleet.", "member."))
    ]
    assert event_types == ["fleet.created", *["member.registered"] * 4, *["member.deregistered"] * 4, "fleet.deleted"]


async def test_deregistered_member_cannot_act_and_its_messages_are_kept(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    row = await fleet_harness.send()
    deregistered = await fleet_harness.deregister(ALICE)
    assert isinstance(deregistered.placement, Placement)
    assert deregistered.placement.tmux_pane_id == "%3"
    assert deregistered.member.status is MemberStatus.DEREGISTERED
    not_a_member = f"agent {ALICE} is not a member of fleet 1."
    assert await problem_detail(fleet_harness.ack(row.task_id)) == not_a_member
    assert await problem_detail(fleet_harness.send(BOB, from_agent_id=ALICE)) == not_a_member
    assert await problem_detail(fleet_harness.broadcast(from_agent_id=ALICE)) == not_a_member
    assert await problem_detail(fleet_harness.send(ALICE)) == f"Destination agent not found: {ALICE}"
    assert [delivery.to_agent_id for delivery in (await fleet_harness.broadcast()).deliveries] == [BOB]
    assert fleet_harness.runtime.database.execute(
        "select status_state from messages where task_id = ?", row.task_id
    ) == [("input_required",)]
    assert (await fleet_harness.cancel(row.task_id)).status_state is MessageState.CANCELED


# -- members are agents


async def test_tasks_held_by_a_member_are_aborted_when_it_is_deregistered(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    task_harness, name = TaskHarness(fleet_harness.runtime), "fleet-1-3"
    task = await task_harness.create()
    [leased] = await task_harness.claim(name, caller=agent_caller(name))
    assert (leased.task.id, task_harness.read_held(name)) == (task.id, 1)
    await fleet_harness.deregister(ALICE)
    assert (await AgentHarness(fleet_harness.runtime).read(name)).status is State.TERMINATED
    aborted = (await task_harness.read(task.id)).task
    assert (aborted.status, aborted.reason, task_harness.read_held(name)) == (TaskState.ABORTED, "agent_terminated", 0)
    assert await problem_detail(task_harness.claim(name, caller=agent_caller(name)))


async def test_member_liveness_is_checked_only_after_its_first_heartbeat_or_claim(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    agent_harness, task_harness = AgentHarness(fleet_harness.runtime), TaskHarness(fleet_harness.runtime)
    names = ["fleet-1-1", "fleet-1-3", "fleet-1-4"]
    assert [(await agent_harness.read(name)).look_at for name in names] == [None] * 3
    agent_harness.make_silent(names[0])
    assert not (await agent_harness.read_history(names[0])).agent.look_at
    result = await agent_harness.heartbeat(names[1])
    assert result.needs_refresh
    assert (await agent_harness.read(names[1])).look_at == result.agent.last_seen_at + 180_000
    assert not (await agent_harness.heartbeat(names[1])).needs_refresh
    await task_harness.claim(names[2])
    claimed = await agent_harness.read(names[2])
    assert claimed.look_at == claimed.last_seen_at + 180_000
    agent_harness.make_silent(names[2])
    assert (await agent_harness.refresh_status(names[2])).status is State.ERROR
    assert await agent_harness.event_types(names[2]) == ["agent.registered", "agent.stale"]


async def test_member_ids_are_reserved_and_replace_an_earlier_agent(fleet_harness: FleetHarness) -> None:
    agent_harness = AgentHarness(fleet_harness.runtime)
    assert "members of fleets" in await problem_detail(agent_harness.register("fleet-1-3"))
    await agent_harness.register("before")
    # An agent that was registered before such ids were reserved.
    database = fleet_harness.runtime.database
    for table, column in (("agents", "id"), ("agent_pulses", "agent_id")):
        database.execute(f"update {table} set {column} = 'fleet-1-1' where {column} = 'before'")
    before = await agent_harness.read("fleet-1-1")
    await fleet_harness.create()
    after = await agent_harness.read("fleet-1-1")
    assert after.created_at > before.created_at, "tokens of the earlier agent are not valid for the member"
    assert (after.name, after.status, after.look_at) == ("Director", State.IDLE, None)


# -- messages


async def test_broadcast_is_stored_in_one_commit_and_delivered_after_it(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    with fail_writes(fleet_harness.runtime.database, "insert", "messages", f"new.to_agent_id = {BOB}"):
        await problem_detail(fleet_harness.broadcast())
    assert (fleet_harness.count_rows()["messages"], fleet_harness.delivered) == (0, [])
    broadcast = await fleet_harness.broadcast(idempotency_key="k", request_digest="d", from_agent_id=ADMINISTRATOR)
    assert [row.to_agent_id for row in broadcast.deliveries] == [DIRECTOR, ALICE, BOB]
    assert fleet_harness.delivered == [*broadcast.deliveries]
    assert fleet_harness.runtime.database.execute(
        "select task_id, to_agent_id, type, status_state, origin_task_id from messages order by task_id"
    ) == [
        (1, 0, MessageType.SUMMARY, MessageState.COMPLETED, 1),
        *[(1 + position, recipient, "unicast", "input_required", 1) for position, recipient in enumerate((1, 3, 4), 1)],
    ]
    await fleet_harness.ack(2, DIRECTOR)
    repeated = await fleet_harness.broadcast(idempotency_key="k", request_digest="d", from_agent_id=ADMINISTRATOR)
    assert (repeated.created, repeated.message) == (False, broadcast.message)
    assert [row.status_state for row in repeated.deliveries] == ["completed", "input_required", "input_required"]
    assert (fleet_harness.count_rows()["messages"], len(fleet_harness.delivered)) == (4, 3)


async def test_log_has_message_events_without_their_text(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    await fleet_harness.send(text="the secret")
    await fleet_harness.ack(1)
    events = [event for event in await fleet_harness.runtime.read_log() if event.type.startswith("message.")]
    assert [(event.type, event.subject, event.to_state) for event in events] == [
        ("message.sent", "1", "input_required"),
        ("message.acknowledged", "1", "completed"),
    ]
    assert not [event for event in await fleet_harness.runtime.read_log() if "secret" in event.data]


async def test_receipt_changes_neither_time_nor_state_and_is_kept_when_acknowledged(
    fleet_harness: FleetHarness,
) -> None:
    await create_fleet_with_members(fleet_harness)
    row = await fleet_harness.send()
    notified = await fleet_harness.receipt(row.task_id)
    assert notified.notified_at is not None
    acknowledged = await fleet_harness.ack(row.task_id)
    assert (acknowledged.notified_at, acknowledged.created_at) == (notified.notified_at, row.created_at)
    other = await fleet_harness.send(BOB)
    canceled = await fleet_harness.cancel(other.task_id)
    late = await fleet_harness.receipt(other.task_id, NoticeFailure.PANE_GONE)
    stored = fleet_harness.runtime.database.execute(
        "select created_at, status_state, status_timestamp, notified_at, notice from messages order by task_id"
    )
    assert stored == [
        (row.created_at, "completed", acknowledged.status_timestamp, notified.notified_at, None),
        (other.created_at, "canceled", canceled.status_timestamp, None, "pane_gone"),
    ]
    assert late.status_timestamp == canceled.status_timestamp


async def test_message_sent_and_acknowledged_in_one_batch_is_stored_as_completed(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    await asyncio.gather(fleet_harness.send(), fleet_harness.ack(1), fleet_harness.receipt(1))
    assert fleet_harness.runtime.database.execute("select status_state, notice from messages") == [("completed", None)]


async def test_member_token_acts_only_as_its_member_and_cannot_change_fleets(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    alice = agent_caller("fleet-1-3")
    assert (await fleet_harness.send(BOB, from_agent_id=ALICE, caller=alice)).from_agent_id == ALICE
    assert await problem_detail(fleet_harness.send(BOB, caller=alice)) == f"This token cannot act as agent {DIRECTOR}"
    assert await problem_detail(fleet_harness.ack(1, BOB, caller=alice)) == f"This token cannot act as agent {BOB}"
    assert "does not have the permission" in await problem_detail(
        fleet_harness.submit_fleet(fleet_harness.register_command(caller=alice))
    )
    assert "does not have the permission" in await problem_detail(
        fleet_harness.submit_fleet(fleet_harness.create_command(caller=alice))
    )
    assert isinstance(
        await fleet_harness.submit_fleet(fleet_harness.create_command(caller=user_caller())), CreateFleetResult
    )


async def test_callers_of_another_zone_cannot_see_the_fleet(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    first, second = FleetHarness(runtime), FleetHarness(runtime, "other")
    await create_fleet_with_members(first)
    await second.create()
    foreign = admin("other")
    assert "does not exist, or this token cannot access it" in await problem_detail(first.send(caller=foreign))
    assert "does not exist, or this token cannot access it" in await problem_detail(
        first.submit_fleet(first.register_command(caller=foreign))
    )
    assert await problem_detail(second.send(ALICE)) == f"Destination agent not found: {ALICE}"
    assert await problem_detail(second.send(fleet_id=7)) == "fleet 7 not found."


async def test_cost_of_an_empty_poll_does_not_grow_with_20000_acknowledged_messages(engine_url: str) -> None:
    """Measured in work of the engine, not in time: pages read on PostgreSQL, virtual machine steps on SQLite."""
    zone_store, cross_zone_store = await open_stores(engine_url)
    counting = CountingStore(zone_store)
    try:
        runtime = RuntimeHarness(engine_url, (counting, cross_zone_store), RuntimeOptions())
        await runtime.put_zone()
        await create_fleet_with_members(FleetHarness(runtime))
        before = await measure_poll(runtime, counting)
        add_acknowledged_messages(runtime.database, 20_000)
        after = await measure_poll(runtime, counting)
        assert {name: cost for name, cost in after.items() if cost > 1.3 * before[name]} == {}
    finally:
        for opened in {zone_store, cross_zone_store}:
            await opened.close()


async def measure_poll(runtime: RuntimeHarness, counting: CountingStore) -> dict[str, int]:
    """The cost of each statement of a poll, including those of the long poll and the unread count."""
    counting.take_counts()
    poll = InboxFilter(
        zone_id=ZONE, caller=admin(), fleet_id=1, agent_id=ALICE, limit=101, state=MessageState.INPUT_REQUIRED
    )
    oldest = msgspec.structs.replace(poll, oldest_first=True)
    member_batch = [(ZONE, ALICE)]
    other_statements = (
        LISTS.messages_newest_unread(batch=member_batch),
        LISTS.messages_unread_counts(batch=member_batch),
    )

    async def poll_inbox(tx: Transaction) -> None:
        for filters in (poll, oldest):
            assert (await message_reads.list_inbox(tx, filters)).messages == []
        await tx.read(*other_statements)

    await runtime.engine.read(poll_inbox, zones=[ZONE])
    return (sqlite_steps if sqlite_path(runtime.url) else pages_touched)(runtime.url, counting.take_counts())


async def test_cost_of_member_requests_does_not_grow_with_the_fleet(engine_url: str) -> None:
    zone_store, cross_zone_store = await open_stores(engine_url)
    counting = CountingStore(zone_store)
    runtime = RuntimeHarness(engine_url, (counting, cross_zone_store), RuntimeOptions())
    try:
        await runtime.put_zone()
        harness = FleetHarness(runtime)
        await create_fleet_with_members(harness)
        await harness.submit_fleet(claim_monitor_command())
        small = await measure_member_verbs(harness, counting, ALICE)
        for _ in range(20):
            await harness.register()
        assert await measure_member_verbs(harness, counting, BOB) == small
        counting.take_counts()
        await harness.delete()
        assert counting.take_counts().statements_sent["members_of_fleets"] == 1
    finally:
        for opened in {zone_store, cross_zone_store}:
            await opened.close()


async def measure_member_verbs(
    harness: FleetHarness, counting: CountingStore, agent_id: int
) -> dict[str, tuple[int, int]]:
    """By verb: the number of statements sent and of rows returned."""
    configure = ConfigureMonitor(zone_id=ZONE, caller=admin(), fleet_id=1, agent_id=agent_id, enabled=False)
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "register": lambda: harness.register(director_id=DIRECTOR, location=pane_location("%5")),
        "configure": lambda: harness.submit_fleet(configure),
        "heartbeat": lambda: harness.heartbeat(agent_id),
        "deregister": lambda: harness.deregister(agent_id),
    }
    measured: dict[str, tuple[int, int]] = {}
    for verb, request in requests.items():
        counting.take_counts()
        await request()
        counts = counting.take_counts()
        assert "members_of_fleets" not in counts.statements_sent, verb
        measured[verb] = (counts.statements_sent.total(), counts.rows_returned)
    return measured


# -- placements and the monitor


async def test_setting_a_pane_is_idempotent_and_a_repeated_key_returns_it(fleet_harness: FleetHarness) -> None:
    await fleet_harness.create(location=pane_location())
    registered = await fleet_harness.register(
        location=pane_location(None), director_id=DIRECTOR, idempotency_key="k", request_digest="d"
    )
    command = SetMemberPane(zone_id=ZONE, caller=admin(), fleet_id=1, agent_id=registered.member.agent_id, pane_id="%9")
    placement = await fleet_harness.submit_fleet(command)
    assert placement == await fleet_harness.submit_fleet(command)
    repeated = await fleet_harness.submit_fleet(
        fleet_harness.register_command(
            location=pane_location(None), director_id=DIRECTOR, idempotency_key="k", request_digest="d"
        )
    )
    assert isinstance(repeated, RegisterMemberResult)
    assert (repeated.created, repeated.member, repeated.placement) == (False, registered.member, placement)


async def test_monitor_heartbeat_needs_the_owner_and_stores_who_was_pinged(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    await fleet_harness.submit_fleet(claim_monitor_command())
    result = await fleet_harness.heartbeat(ALICE)
    assert isinstance(result, MonitorRuntime)
    assert fleet_harness.runtime.database.execute(
        "select agent_id, last_ping_at from monitor_config where last_ping_at is not null"
    ) == [(ALICE, result.last_tick_at)]
    assert await problem_detail(fleet_harness.heartbeat(BOB, pid=7)) == "this process no longer monitors fleet 1"


class _MembersReadBeforeBob(Transaction):
    """A transaction that read the members before Bob registered, and all other rows afterwards."""

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        results = await super().read(*statements)
        return [
            [row for row in rows if decode([row], Member)[0].agent_id != BOB]
            if bound.statement.name == "members_of_fleets"
            else rows
            for bound, rows in zip(statements, results, strict=True)
        ]


async def test_monitor_omits_a_member_that_registers_during_the_read(fleet_harness: FleetHarness) -> None:
    await create_fleet_with_members(fleet_harness)
    request = FleetRequest(zone_id=ZONE, caller=admin(), fleet_id=1)

    async def monitored_ids(transaction_type: type[Transaction]) -> set[int]:
        monitor = await fleet_harness.runtime.engine.store.read(
            lambda store_tx: fleet_reads.get_monitor(transaction_type(store_tx, wait_for_locks=False), request), [ZONE]
        )
        return {member.agent_id for member in monitor.members}

    assert BOB in await monitored_ids(Transaction)
    assert await monitored_ids(_MembersReadBeforeBob) == await monitored_ids(Transaction) - {BOB}
