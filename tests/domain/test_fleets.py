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
from tests.support.agency import Agency, agent_caller, person
from tests.support.asking import ZONE, admin
from tests.support.counting import Counting, pages, steps
from tests.support.fleeting import ADMINISTRATOR, ALICE, BOB, DIRECTOR, Fleeting, acknowledged, claiming, failing, place
from tests.support.keel import Keel, Rigging, keel_on, open_stores
from tests.support.rounds import ROUNDS
from tests.support.working import Working


@pytest.fixture
def fleeting(keel: Keel) -> Fleeting:
    return Fleeting(keel)


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as problem:
        await asked
    return problem.value.detail


async def crewed(fleeting: Fleeting) -> None:
    """Fleet 1 with its director, its administrator, and alice and bob in panes."""
    await fleeting.create(location=place())
    for name, pane in (("alice", "%3"), ("bob", "%4")):
        await fleeting.register(name, director_id=DIRECTOR, location=place(pane))


# -- whole or not at all


async def test_a_fleet_begins_whole_and_everything_in_it_at_one_instant(fleeting: Fleeting) -> None:
    made = await fleeting.create(label="PR-42", location=place())
    assert fleeting.rows() == {
        "fleet_counters": 1, "fleets": 1, "members": 2, "messages": 0, "agent_placements": 1, "monitor_config": 1,
        "monitor_runtime": 0, "agents": 1, "agent_pulses": 1,
    }  # fmt: skip
    side = fleeting.keel.side
    [row] = side.run("select fleet_id, label, created_at, deleted_at, director_agent_id from fleets")
    assert row == (1, "PR-42", made.fleet.created_at, None, DIRECTOR)
    instants = side.run(
        "select created_at from fleets union select registered_at from members union "
        "select created_at from agent_placements"
    )
    assert instants == [(made.fleet.created_at,)]
    assert side.run("select agent_id, registry_id from members order by agent_id") == [
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
    fleeting: Fleeting, write: str, table: str, when: str
) -> None:
    before = len(await fleeting.keel.log())
    with failing(fleeting.keel.side, write, table, when):
        await refused(fleeting.create(location=place()))
    assert set(fleeting.rows().values()) == {0}
    assert len(await fleeting.keel.log()) == before
    made = await fleeting.create(location=place())
    assert (made.fleet.fleet_id, made.director.agent_id, made.administrator.agent_id) == (1, 1, 2)


async def test_a_fleet_and_a_member_that_come_and_go_in_one_batch_are_gone(fleeting: Fleeting) -> None:
    await fleeting.create()
    await asyncio.gather(
        fleeting.create(location=place()), fleeting.register(), fleeting.delete(2), fleeting.deregister(5)
    )
    side = fleeting.keel.side
    assert side.run("select fleet_id from fleets where deleted_at is null") == [(1,)]
    assert side.run("select agent_id from members where status = 'active' order by agent_id") == [(1,), (2,)]
    assert side.run("select id from agents where status <> 'TERMINATED' order by id") == [("fleet-1-1",)]
    assert side.count("agents") == 3
    assert side.count("agent_placements") + side.count("monitor_config") == 0


# -- ids


async def test_no_id_is_given_out_again_after_deletes_and_rollbacks_on_any_noun(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    await fleeting.send()
    await fleeting.deregister(BOB)
    with failing(fleeting.keel.side, "insert", "messages"):
        await refused(fleeting.send())
    assert (await fleeting.send()).task_id == 2
    with failing(fleeting.keel.side, "insert", "members"):
        await refused(fleeting.register("carol"))
    assert (await fleeting.register("carol")).member.agent_id == 5
    await fleeting.delete()
    made = await fleeting.create()
    assert (made.fleet.fleet_id, made.director.agent_id, made.administrator.agent_id) == (2, 6, 7)


async def test_zones_count_for_themselves_and_a_busy_one_is_not_set_back(engine_url: str) -> None:
    async with keel_on(engine_url) as keel:
        for zone_id in (ZONE, "other"):
            await keel.zone(zone_id)
        own, other = Fleeting(keel), Fleeting(keel, "other")
        for each in (own, other):
            await crewed(each)
        ids = [(await asyncio.gather(own.send(), other.send(), other.broadcast())) for _ in range(1 + ROUNDS)]
        assert [row.task_id for row, _, _ in ids] == [*range(1, 2 + ROUNDS)]
        assert [done.message.task_id for _, _, done in ids] == [2 + 4 * n for n in range(1 + ROUNDS)]


# -- the end


async def test_a_fleet_that_is_deleted_deregisters_everybody_keeps_its_messages_and_stays_deleted(
    fleeting: Fleeting,
) -> None:
    await crewed(fleeting)
    await fleeting.send()
    await fleeting.crew.submit(claiming())
    done = await fleeting.delete()
    assert (done.deregistered_count, len(done.placements)) == (4, 3)
    again = await fleeting.delete()
    assert (again.deregistered_count, again.placements) == (0, ())
    assert again.fleet.deleted_at == done.fleet.deleted_at
    side = fleeting.keel.side
    assert side.count("members", "status = 'active' or deregistered_at is null") == 0
    assert side.count("agents", "status <> 'TERMINATED'") == 0
    assert fleeting.rows() | {"agents": 0, "agent_pulses": 0, "fleet_counters": 0} == {
        "fleet_counters": 0, "fleets": 1, "members": 4, "messages": 1, "agent_placements": 0, "monitor_config": 0,
        "monitor_runtime": 0, "agents": 0, "agent_pulses": 0,
    }  # fmt: skip
    for asked in (fleeting.send(), fleeting.ack(1), fleeting.register(), fleeting.beat()):
        assert await refused(asked) == "fleet 1 is deleted"
    told = [event.type for event in await fleeting.keel.log() if event.type.startswith(("fleet.", "member."))]
    assert told == ["fleet.created", *["member.registered"] * 4, *["member.deregistered"] * 4, "fleet.deleted"]


async def test_whoever_is_deregistered_can_do_nothing_and_what_it_was_sent_stays(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    row = await fleeting.send()
    gone = await fleeting.deregister(ALICE)
    assert isinstance(gone.placement, Placement)
    assert gone.placement.tmux_pane_id == "%3"
    assert gone.member.status is MemberStatus.DEREGISTERED
    nobody = f"agent {ALICE} is not a member of fleet 1."
    assert await refused(fleeting.ack(row.task_id)) == nobody
    assert await refused(fleeting.send(BOB, from_agent_id=ALICE)) == nobody
    assert await refused(fleeting.broadcast(from_agent_id=ALICE)) == nobody
    assert await refused(fleeting.send(ALICE)) == f"Destination agent not found: {ALICE}"
    assert [each.to_agent_id for each in (await fleeting.broadcast()).deliveries] == [BOB]
    assert fleeting.keel.side.run("select status_state from messages where task_id = ?", row.task_id) == [
        ("input_required",)
    ]
    assert (await fleeting.cancel(row.task_id)).status_state is MessageState.CANCELED


# -- members are agents


async def test_a_member_claims_tasks_and_what_it_held_is_taken_back_when_it_leaves(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    work, name = Working(fleeting.keel), "fleet-1-3"
    task = await work.make()
    [leased] = await work.claim(name, caller=agent_caller(name))
    assert (leased.task.id, work.held(name)) == (task.id, 1)
    await fleeting.deregister(ALICE)
    assert (await Agency(fleeting.keel).show(name)).status is State.TERMINATED
    lost = (await work.show(task.id)).task
    assert (lost.status, lost.reason, work.held(name)) == (TaskState.ABORTED, "agent_terminated", 0)
    assert await refused(work.claim(name, caller=agent_caller(name)))


async def test_a_member_is_not_missed_before_it_has_spoken_and_is_from_then_on(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    agency, work = Agency(fleeting.keel), Working(fleeting.keel)
    names = ["fleet-1-1", "fleet-1-3", "fleet-1-4"]
    assert [(await agency.show(name)).look_at for name in names] == [None] * 3
    agency.silent(names[0])
    assert not (await agency.watch(names[0])).agent.look_at
    beaten = await agency.beat(names[1])
    assert beaten.needs_refresh
    assert (await agency.show(names[1])).look_at == beaten.agent.last_seen_at + 180_000
    assert not (await agency.beat(names[1])).needs_refresh
    await work.claim(names[2])
    claimed = await agency.show(names[2])
    assert claimed.look_at == claimed.last_seen_at + 180_000
    agency.silent(names[2])
    assert (await agency.look(names[2])).status is State.ERROR
    assert await agency.told(names[2]) == ["agent.registered", "agent.stale"]


async def test_the_ids_of_members_are_nobody_elses_and_who_had_one_before_is_heard_no_more(fleeting: Fleeting) -> None:
    agency = Agency(fleeting.keel)
    assert "members of fleets" in await refused(agency.register("fleet-1-3"))
    await agency.register("before")
    # As one that was registered before such ids were kept.
    side = fleeting.keel.side
    for table, column in (("agents", "id"), ("agent_pulses", "agent_id")):
        side.run(f"update {table} set {column} = 'fleet-1-1' where {column} = 'before'")
    before = await agency.show("fleet-1-1")
    await fleeting.create()
    after = await agency.show("fleet-1-1")
    assert after.created_at > before.created_at, "tokens of the one before are another's"
    assert (after.name, after.status, after.look_at) == ("Director", State.IDLE, None)


# -- messages


async def test_a_broadcast_is_one_commit_and_is_handed_on_after_it(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    with failing(fleeting.keel.side, "insert", "messages", f"new.to_agent_id = {BOB}"):
        await refused(fleeting.broadcast())
    assert (fleeting.rows()["messages"], fleeting.delivered) == (0, [])
    done = await fleeting.broadcast(idempotency_key="k", request_digest="d", from_agent_id=ADMINISTRATOR)
    assert [row.to_agent_id for row in done.deliveries] == [DIRECTOR, ALICE, BOB]
    assert fleeting.delivered == [*done.deliveries]
    assert fleeting.keel.side.run(
        "select task_id, to_agent_id, type, status_state, origin_task_id from messages order by task_id"
    ) == [
        (1, 0, MessageType.SUMMARY, MessageState.COMPLETED, 1),
        *[(1 + to_place, to, "unicast", "input_required", 1) for to_place, to in enumerate((1, 3, 4), 1)],
    ]
    await fleeting.ack(2, DIRECTOR)
    again = await fleeting.broadcast(idempotency_key="k", request_digest="d", from_agent_id=ADMINISTRATOR)
    assert (again.created, again.message) == (False, done.message)
    assert [row.status_state for row in again.deliveries] == ["completed", "input_required", "input_required"]
    assert (fleeting.rows()["messages"], len(fleeting.delivered)) == (4, 3)


async def test_the_log_tells_who_spoke_to_whom_and_never_what_was_said(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    await fleeting.send(text="the secret")
    await fleeting.ack(1)
    told = [event for event in await fleeting.keel.log() if event.type.startswith("message.")]
    assert [(event.type, event.subject, event.to_state) for event in told] == [
        ("message.sent", "1", "input_required"),
        ("message.acknowledged", "1", "completed"),
    ]
    assert not [event for event in await fleeting.keel.log() if "secret" in event.data]


async def test_a_receipt_moves_neither_time_nor_state_and_an_end_keeps_the_receipt(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    row = await fleeting.send()
    typed = await fleeting.receipt(row.task_id)
    assert typed.notified_at is not None
    done = await fleeting.ack(row.task_id)
    assert (done.notified_at, done.created_at) == (typed.notified_at, row.created_at)
    other = await fleeting.send(BOB)
    canceled = await fleeting.cancel(other.task_id)
    late = await fleeting.receipt(other.task_id, NoticeFailure.PANE_GONE)
    stored = fleeting.keel.side.run(
        "select created_at, status_state, status_timestamp, notified_at, notice from messages order by task_id"
    )
    assert stored == [
        (row.created_at, "completed", done.status_timestamp, typed.notified_at, None),
        (other.created_at, "canceled", canceled.status_timestamp, None, "pane_gone"),
    ]
    assert late.status_timestamp == canceled.status_timestamp


async def test_what_is_sent_and_acknowledged_in_one_batch_is_stored_as_it_is(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    await asyncio.gather(fleeting.send(), fleeting.ack(1), fleeting.receipt(1))
    assert fleeting.keel.side.run("select status_state, notice from messages") == [("completed", None)]


async def test_a_panes_token_acts_as_its_own_member_alone_and_changes_no_fleet(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    alice = agent_caller("fleet-1-3")
    assert (await fleeting.send(BOB, from_agent_id=ALICE, caller=alice)).from_agent_id == ALICE
    assert await refused(fleeting.send(BOB, caller=alice)) == f"This token cannot act as agent {DIRECTOR}"
    assert await refused(fleeting.ack(1, BOB, caller=alice)) == f"This token cannot act as agent {BOB}"
    assert "may not do this" in await refused(fleeting.crew.submit(fleeting.registering(caller=alice)))
    assert "may not do this" in await refused(fleeting.crew.submit(fleeting.creating(caller=alice)))
    assert isinstance(await fleeting.crew.submit(fleeting.creating(caller=person())), CreateFleetResult)


async def test_whoever_is_of_another_zone_finds_no_fleet_there(keel: Keel) -> None:
    await keel.zone("other")
    own, other = Fleeting(keel), Fleeting(keel, "other")
    await crewed(own)
    await other.create()
    foreign = admin("other")
    assert "no workspace" in await refused(own.send(caller=foreign))
    assert "no workspace" in await refused(own.crew.submit(own.registering(caller=foreign)))
    assert await refused(other.send(ALICE)) == f"Destination agent not found: {ALICE}"
    assert await refused(other.send(fleet_id=7)) == "fleet 7 not found."


async def test_an_empty_poll_costs_no_more_after_20000_acknowledged_messages_than_before_the_first(
    engine_url: str,
) -> None:
    """By what the engine does for it, which does not depend on the clock: pages, or steps of its machine."""
    own, everywhere = await open_stores(engine_url)
    counting = Counting(own)
    try:
        keel = Keel(engine_url, (counting, everywhere), Rigging())
        await keel.zone()
        await crewed(Fleeting(keel))
        before = await polled(keel, counting)
        acknowledged(keel.side, 20_000)
        after = await polled(keel, counting)
        assert {name: cost for name, cost in after.items() if cost > 1.3 * before[name]} == {}
    finally:
        for store in {own, everywhere}:
            await store.close()


async def polled(keel: Keel, counting: Counting) -> dict[str, int]:
    """What each statement costs that a poll asks, and whoever waits or counts beside it."""
    counting.taken()
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
    return (steps if sqlite_path(keel.url) else pages)(keel.url, counting.taken())


async def test_what_is_asked_of_one_member_reads_as_much_in_a_large_fleet_as_in_a_small_one(engine_url: str) -> None:
    own, everywhere = await open_stores(engine_url)
    counting = Counting(own)
    keel = Keel(engine_url, (counting, everywhere), Rigging())
    try:
        await keel.zone()
        fleeting = Fleeting(keel)
        await crewed(fleeting)
        await fleeting.crew.submit(claiming())
        small = await read_by_each(fleeting, counting, ALICE)
        for _ in range(20):
            await fleeting.register()
        assert await read_by_each(fleeting, counting, BOB) == small
        counting.taken()
        await fleeting.delete()
        assert counting.taken().sent["members_of_fleets"] == 1
    finally:
        for store in {own, everywhere}:
            await store.close()


async def read_by_each(fleeting: Fleeting, counting: Counting, agent_id: int) -> dict[str, tuple[int, int]]:
    """By verb: statements that were sent, and rows that came back."""
    configure = ConfigureMonitor(zone_id=ZONE, caller=admin(), fleet_id=1, agent_id=agent_id, enabled=False)
    asks: dict[str, Callable[[], Awaitable[object]]] = {
        "register": lambda: fleeting.register(director_id=DIRECTOR, location=place("%5")),
        "configure": lambda: fleeting.crew.submit(configure),
        "beat": lambda: fleeting.beat(agent_id),
        "deregister": lambda: fleeting.deregister(agent_id),
    }
    found: dict[str, tuple[int, int]] = {}
    for verb, ask in asks.items():
        counting.taken()
        await ask()
        counts = counting.taken()
        assert "members_of_fleets" not in counts.sent, verb
        found[verb] = (counts.sent.total(), counts.found)
    return found


# -- placements and the monitor


async def test_a_pane_is_said_once_and_the_key_of_a_member_shows_it_with_its_pane(fleeting: Fleeting) -> None:
    await fleeting.create(location=place())
    made = await fleeting.register(location=place(None), director_id=DIRECTOR, idempotency_key="k", request_digest="d")
    ask = SetMemberPane(zone_id=ZONE, caller=admin(), fleet_id=1, agent_id=made.member.agent_id, pane_id="%9")
    there = await fleeting.crew.submit(ask)
    assert there == await fleeting.crew.submit(ask)
    again = await fleeting.crew.submit(
        fleeting.registering(location=place(None), director_id=DIRECTOR, idempotency_key="k", request_digest="d")
    )
    assert isinstance(again, RegisterMemberResult)
    assert (again.created, again.member, again.placement) == (False, made.member, there)


async def test_a_heartbeat_is_its_owners_and_keeps_whom_it_pinged(fleeting: Fleeting) -> None:
    await crewed(fleeting)
    await fleeting.crew.submit(claiming())
    beaten = await fleeting.beat(ALICE)
    assert isinstance(beaten, MonitorRuntime)
    assert fleeting.keel.side.run(
        "select agent_id, last_ping_at from monitor_config where last_ping_at is not null"
    ) == [(ALICE, beaten.last_tick_at)]
    assert await refused(fleeting.beat(BOB, pid=7)) == "this process does not monitor fleet 1 any more"
