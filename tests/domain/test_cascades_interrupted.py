"""Endings that are left half-way, finished by several at once, asked for by many, or met by rows no operation makes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from itertools import product

import msgspec
import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions.model import FinishCascade, Receipt, Session, State, Terminate, TerminateResult
from quarterdeck.domain.sessions.sweeps import CASCADE
from quarterdeck.engine.event_log import Event
from tests.support.builders import ZONE, admin, spawn_command
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime, result_names

CHUNK = 3
RIGGING = RuntimeOptions(chunk=CHUNK)


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url, RIGGING) as laid:
        await laid.put_zone()
        yield laid


@pytest.fixture
async def replicas(postgres_url: str) -> AsyncIterator[list[RuntimeHarness]]:
    async with contextlib.AsyncExitStack() as stack:
        keels = [await stack.enter_async_context(open_runtime(postgres_url, RIGGING)) for _ in range(3)]
        await keels[0].put_zone()
        yield keels


async def stamp(keel: RuntimeHarness, session: Session) -> TerminateResult:
    """An ending whose asker is killed before anything of it is settled."""
    ended = await keel.terminate_lane.submit(Terminate(session.zone_id, session.id, "enough", admin()))
    assert ended.cascade_id
    return ended


async def assert_ended_once_and_in_order(keel: RuntimeHarness, sessions: list[Session], after: int = 0) -> list[Event]:
    ended = [event for event in await keel.read_log(after) if event.type == "session.terminate"]
    places = {event.subject: place for place, event in enumerate(ended)}
    assert sorted(event.subject for event in ended) == sorted(row.id for row in sessions)
    for row in sessions:
        if row.parent_id is not None:
            assert places[row.id] < places[row.parent_id]
    assert keel.database.count("agent_sessions", "terminated_at is not null and status <> 'terminated'") == 0
    assert keel.database.count("cascades", "finished_at is null or stamped <> settled") == 0
    assert_counts_match_rows(keel.database)
    return ended


# -- left half-way


@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_an_ending_left_half_way_is_finished_by_the_sweep_of_a_new_process(engine_url: str, chunks: int) -> None:
    async with open_runtime(engine_url, RIGGING) as killed:
        await killed.put_zone()
        made = await killed.spawn_tree(3, 3)
        ended = await stamp(killed, made[0])
        for _ in range(chunks):
            await killed.finish_cascade_lane.submit(FinishCascade(ZONE, ended.cascade_id or ""))
    async with open_runtime(engine_url, RIGGING) as keel:
        assert [(await keel.read_session(row)).status for row in made] == [State.TERMINATED] * 13
        assert keel.database.count("agent_sessions", "status = 'terminated'") == chunks * CHUNK
        assert await keel.run_sweep(name=CASCADE) == 1
        for event in await assert_ended_once_and_in_order(keel, made):
            assert event.actor == "tester", "who asked, and not who came to finish it"
            assert msgspec.json.decode(event.data)["reason"] == "enough"
        assert await keel.run_sweep(name=CASCADE) == 0


async def test_the_sweep_finishes_what_was_left_in_every_zone_and_touches_nobody_else(runtime: RuntimeHarness) -> None:
    made, others = [], [await runtime.spawn()]
    for number in range(4):
        zone_id = f"zone-{number}"
        await runtime.put_zone(zone_id)
        tree = await runtime.spawn_tree(5, zone_id=zone_id)
        others.append(await runtime.spawn(zone_id))
        await stamp(runtime, tree[0])
        made += tree
    assert await runtime.run_sweep(batch=2, name=CASCADE) == 4
    await assert_ended_once_and_in_order(runtime, made)
    assert [(await runtime.read_session(row)).status for row in others] == [State.ACTIVE] * 5


async def test_the_sweep_finishes_overlapping_endings_in_the_order_they_were_asked_for(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 4)
    await stamp(runtime, made[1])
    await stamp(runtime, made[0])
    assert await runtime.run_sweep(name=CASCADE) == 2
    await assert_ended_once_and_in_order(runtime, made)


async def test_a_cascade_whose_rows_are_gone_is_over(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(5)
    await stamp(runtime, made[0])
    runtime.database.execute("delete from agent_sessions where zone_id = ?", ZONE)
    async with asyncio.timeout(30):
        assert await runtime.run_sweep(name=CASCADE) == 1
        assert await runtime.run_sweep(name=CASCADE) == 0


# -- several at once


async def test_two_finishers_and_a_sweep_at_once_settle_each_session_once(runtime: RuntimeHarness) -> None:
    for _ in range(ROUNDS):
        after = len(await runtime.read_log())
        made = await runtime.spawn_tree(3, 3)
        ended = await stamp(runtime, made[0])
        works: list[Awaitable[object]] = [
            runtime.cascade_runner.run_to_end(ended),
            runtime.cascade_runner.run_to_end(ended),
            runtime.run_sweep(name=CASCADE),
        ]
        await asyncio.gather(*works)
        await assert_ended_once_and_in_order(runtime, made, after)


async def test_finishers_and_sweeps_of_three_replicas_at_once_settle_each_session_once(
    replicas: list[RuntimeHarness],
) -> None:
    for _ in range(ROUNDS):
        after = len(await replicas[0].read_log())
        made = await replicas[0].spawn_tree(3, 3)
        ended = await stamp(replicas[0], made[0])
        works: list[Awaitable[object]] = [keel.cascade_runner.run_to_end(ended) for keel in replicas]
        works += [keel.run_sweep(name=CASCADE) for keel in replicas]
        await asyncio.gather(*works)
        await assert_ended_once_and_in_order(replicas[1], made, after)


def assert_receipts_add_up(receipts: list[Receipt], asked: int) -> None:
    """Of many who asked for the same, each session was stopped for one, and all were told that it is over."""
    assert sum(receipt.stopped for receipt in receipts) == asked
    for receipt in receipts:
        assert (receipt.asked, receipt.stopped + receipt.already_stopped) == (asked, asked)
        assert receipt.left == []


async def test_of_many_deletes_at_once_one_stops_the_tree_and_the_others_join_or_come_after(
    runtime: RuntimeHarness,
) -> None:
    for _ in range(ROUNDS):
        after = len(await runtime.read_log())
        made = await runtime.spawn_tree(3, 3)
        receipts = await asyncio.gather(*(runtime.terminate(made[0]) for _ in range(8)))
        assert_receipts_add_up(receipts, 13)
        assert [receipt.joined for receipt in receipts] == [False] + [True] * 7
        assert len({receipt.cascade_id for receipt in receipts}) == 1
        await assert_ended_once_and_in_order(runtime, made, after)


async def test_of_many_deletes_through_three_replicas_one_stops_the_tree(replicas: list[RuntimeHarness]) -> None:
    for _ in range(ROUNDS):
        after = len(await replicas[0].read_log())
        made = await replicas[0].spawn_tree(3, 3)
        receipts = await asyncio.gather(*(keel.terminate(made[0]) for keel in replicas for _ in range(3)))
        assert_receipts_add_up(receipts, 13)
        await assert_ended_once_and_in_order(replicas[0], made, after)


async def test_branches_and_their_tree_ended_through_three_replicas_end_children_first(
    replicas: list[RuntimeHarness],
) -> None:
    for _ in range(ROUNDS):
        after = len(await replicas[0].read_log())
        made = await replicas[0].spawn_tree(3, 3)
        targets = [*made[1:], made[0]]
        ends = [keel.terminate(row) for keel, row in zip(replicas * 5, targets, strict=False)]
        receipts = await asyncio.gather(*ends)
        assert sum(receipt.stopped for receipt in receipts) == 13
        assert all(receipt.left == [] for receipt in receipts)
        await assert_ended_once_and_in_order(replicas[0], made, after)


async def test_no_spawn_slips_into_a_tree_that_is_stamped_on_another_replica(replicas: list[RuntimeHarness]) -> None:
    for _ in range(ROUNDS):
        after = len(await replicas[0].read_log())
        made = await replicas[0].spawn_tree(3, 2)
        parents = made[1:4]
        spawns = [
            keel.spawn_lane.submit(spawn_command(parent_id=row.id))
            for row, keel, _ in product(parents, replicas, range(4))
        ]
        ending = asyncio.ensure_future(replicas[1].terminate(made[0]))
        late = [keel.spawn_lane.submit(spawn_command(parent_id=row.id)) for row, keel in product(parents, replicas)]
        outcomes = await asyncio.gather(*spawns, *late, return_exceptions=True)
        receipt = await ending
        admitted = [each.session for each in outcomes if not isinstance(each, BaseException)]
        assert set(result_names(outcomes)) <= {"Spawned", "parent_not_found"}
        assert receipt.asked == receipt.stopped == len(made) + len(admitted)
        await assert_ended_once_and_in_order(replicas[2], made + admitted, after)


async def test_a_token_of_what_was_stamped_is_refused_on_every_replica_from_the_stamp_on(
    replicas: list[RuntimeHarness],
) -> None:
    made = await replicas[0].spawn_tree(5)
    await stamp(replicas[0], made[0])
    for keel, row in product(replicas, made):
        who = msgspec.structs.replace(admin(), session_id=row.id)
        with pytest.raises(Problem) as refused:
            await keel.spawn(caller=who)
        assert refused.value.code == "session_ended"


# -- rows that no operation makes


@pytest.mark.parametrize("top", [0, 1, 2, 3])
@pytest.mark.parametrize("chunk", [1_000, 2])
async def test_even_a_circle_of_parents_ends_from_whichever_side_and_leaves_nobody(
    engine_url: str, chunk: int, top: int
) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=chunk)) as keel:
        await keel.put_zone()
        made = await keel.spawn_tree(1, 1, 2)
        other = await keel.spawn()
        keel.database.execute("update agent_sessions set parent_id = ? where id = ?", made[2].id, made[0].id)
        async with asyncio.timeout(30):
            receipt = await keel.terminate(made[top])
        # The last hangs from the circle and is nobody's ancestor.
        expected = [made[3]] if top == 3 else made
        assert (receipt.stopped, receipt.left) == (len(expected), [])
        assert keel.database.count("agent_sessions", "status = 'terminated'") == len(expected)
        ended = [event.subject for event in await keel.read_log() if event.type == "session.terminate"]
        assert sorted(ended) == sorted(row.id for row in expected)
        assert (await keel.read_session(other)).status is State.ACTIVE


async def test_one_that_is_its_own_parent_ends(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    runtime.database.execute("update agent_sessions set parent_id = id where id = ?", root.id)
    async with asyncio.timeout(30):
        assert (await runtime.terminate(root)).stopped == 1


@pytest.mark.parametrize("scope", ["zone", "application", "tree", "parent", "concurrent"])
async def test_an_ending_does_not_fail_by_a_count_that_a_hand_has_made_too_small(
    runtime: RuntimeHarness, scope: str
) -> None:
    # What must stop, stops; `qd check` says which count was wrong.
    made = await runtime.spawn_tree(2)
    runtime.database.execute("update admission_counts set live = 0 where scope = ?", scope)
    assert (await runtime.terminate(made[0])).stopped == 3
    assert runtime.database.count("admission_counts", "live <> 0") == 0
