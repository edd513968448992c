"""Cascades that are interrupted, finished by several processes, requested concurrently, or met by corrupt rows."""

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
OPTIONS = RuntimeOptions(chunk=CHUNK)


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url, OPTIONS) as runtime:
        await runtime.put_zone()
        yield runtime


@pytest.fixture
async def replicas(postgres_url: str) -> AsyncIterator[list[RuntimeHarness]]:
    async with contextlib.AsyncExitStack() as stack:
        runtimes = [await stack.enter_async_context(open_runtime(postgres_url, OPTIONS)) for _ in range(3)]
        await runtimes[0].put_zone()
        yield runtimes


async def mark(runtime: RuntimeHarness, session: Session) -> TerminateResult:
    """Start a termination and stop before its first chunk, as if the requesting process were killed."""
    result = await runtime.terminate_lane.submit(Terminate(session.zone_id, session.id, "obsolete", admin()))
    assert result.cascade_id
    return result


async def assert_ended_once_and_in_order(
    runtime: RuntimeHarness, sessions: list[Session], after: int = 0
) -> list[Event]:
    events = [event for event in await runtime.read_log(after) if event.type == "session.terminate"]
    positions = {event.subject: position for position, event in enumerate(events)}
    assert sorted(event.subject for event in events) == sorted(row.id for row in sessions)
    for row in sessions:
        if row.parent_id is not None:
            assert positions[row.id] < positions[row.parent_id]
    assert runtime.database.count("agent_sessions", "terminated_at is not null and status <> 'terminated'") == 0
    assert runtime.database.count("cascades", "finished_at is null or stamped <> settled") == 0
    assert_counts_match_rows(runtime.database)
    return events


# -- interrupted cascades


@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_interrupted_cascade_is_finished_by_the_sweep_of_a_new_process(engine_url: str, chunks: int) -> None:
    async with open_runtime(engine_url, OPTIONS) as killed:
        await killed.put_zone()
        sessions = await killed.spawn_tree(3, 3)
        result = await mark(killed, sessions[0])
        for _ in range(chunks):
            await killed.finish_cascade_lane.submit(FinishCascade(ZONE, result.cascade_id or ""))
    async with open_runtime(engine_url, OPTIONS) as runtime:
        assert [(await runtime.read_session(row)).status for row in sessions] == [State.TERMINATED] * 13
        assert runtime.database.count("agent_sessions", "status = 'terminated'") == chunks * CHUNK
        assert await runtime.run_sweep(name=CASCADE) == 1
        for event in await assert_ended_once_and_in_order(runtime, sessions):
            assert event.actor == "tester", "the actor is the requester, not the process that finishes"
            assert msgspec.json.decode(event.data)["reason"] == "obsolete"
        assert await runtime.run_sweep(name=CASCADE) == 0


async def test_sweep_finishes_cascades_of_every_zone_and_no_other_sessions(runtime: RuntimeHarness) -> None:
    sessions, others = [], [await runtime.spawn()]
    for number in range(4):
        zone_id = f"zone-{number}"
        await runtime.put_zone(zone_id)
        tree = await runtime.spawn_tree(5, zone_id=zone_id)
        others.append(await runtime.spawn(zone_id))
        await mark(runtime, tree[0])
        sessions += tree
    assert await runtime.run_sweep(batch=2, name=CASCADE) == 4
    await assert_ended_once_and_in_order(runtime, sessions)
    assert [(await runtime.read_session(row)).status for row in others] == [State.ACTIVE] * 5


async def test_sweep_finishes_overlapping_cascades_in_request_order(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(2, 4)
    await mark(runtime, sessions[1])
    await mark(runtime, sessions[0])
    assert await runtime.run_sweep(name=CASCADE) == 2
    await assert_ended_once_and_in_order(runtime, sessions)


async def test_cascade_with_deleted_rows_is_finished(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(5)
    await mark(runtime, sessions[0])
    runtime.database.execute("delete from agent_sessions where zone_id = ?", ZONE)
    async with asyncio.timeout(30):
        assert await runtime.run_sweep(name=CASCADE) == 1
        assert await runtime.run_sweep(name=CASCADE) == 0


# -- concurrent runners and requests


async def test_two_runners_and_a_sweep_terminate_each_session_once(runtime: RuntimeHarness) -> None:
    for _ in range(ROUNDS):
        after = len(await runtime.read_log())
        sessions = await runtime.spawn_tree(3, 3)
        result = await mark(runtime, sessions[0])
        runs: list[Awaitable[object]] = [
            runtime.cascade_runner.run_to_end(result),
            runtime.cascade_runner.run_to_end(result),
            runtime.run_sweep(name=CASCADE),
        ]
        await asyncio.gather(*runs)
        await assert_ended_once_and_in_order(runtime, sessions, after)


async def test_runners_and_sweeps_of_three_replicas_terminate_each_session_once(replicas: list[RuntimeHarness]) -> None:
    for _ in range(ROUNDS):
        after = len(await replicas[0].read_log())
        sessions = await replicas[0].spawn_tree(3, 3)
        result = await mark(replicas[0], sessions[0])
        runs: list[Awaitable[object]] = [runtime.cascade_runner.run_to_end(result) for runtime in replicas]
        runs += [runtime.run_sweep(name=CASCADE) for runtime in replicas]
        await asyncio.gather(*runs)
        await assert_ended_once_and_in_order(replicas[1], sessions, after)


def assert_receipts_add_up(receipts: list[Receipt], expected: int) -> None:
    """Each session is counted as stopped in one receipt, and every receipt reports the tree as terminated."""
    assert sum(receipt.stopped for receipt in receipts) == expected
    for receipt in receipts:
        assert (receipt.asked, receipt.stopped + receipt.already_stopped) == (expected, expected)
        assert receipt.left == []


async def test_concurrent_terminations_stop_the_tree_once_and_join_one_cascade(runtime: RuntimeHarness) -> None:
    for _ in range(ROUNDS):
        after = len(await runtime.read_log())
        sessions = await runtime.spawn_tree(3, 3)
        receipts = await asyncio.gather(*(runtime.terminate(sessions[0]) for _ in range(8)))
        assert_receipts_add_up(receipts, 13)
        assert [receipt.joined for receipt in receipts] == [False] + [True] * 7
        assert len({receipt.cascade_id for receipt in receipts}) == 1
        await assert_ended_once_and_in_order(runtime, sessions, after)


async def test_concurrent_terminations_on_three_replicas_stop_the_tree_once(replicas: list[RuntimeHarness]) -> None:
    for _ in range(ROUNDS):
        after = len(await replicas[0].read_log())
        sessions = await replicas[0].spawn_tree(3, 3)
        receipts = await asyncio.gather(*(runtime.terminate(sessions[0]) for runtime in replicas for _ in range(3)))
        assert_receipts_add_up(receipts, 13)
        await assert_ended_once_and_in_order(replicas[0], sessions, after)


async def test_branches_and_tree_terminated_on_three_replicas_end_children_first(
    replicas: list[RuntimeHarness],
) -> None:
    for _ in range(ROUNDS):
        after = len(await replicas[0].read_log())
        sessions = await replicas[0].spawn_tree(3, 3)
        targets = [*sessions[1:], sessions[0]]
        terminations = [runtime.terminate(row) for runtime, row in zip(replicas * 5, targets, strict=False)]
        receipts = await asyncio.gather(*terminations)
        assert sum(receipt.stopped for receipt in receipts) == 13
        assert all(receipt.left == [] for receipt in receipts)
        await assert_ended_once_and_in_order(replicas[0], sessions, after)


async def test_spawn_cannot_join_a_tree_marked_on_another_replica(replicas: list[RuntimeHarness]) -> None:
    for _ in range(ROUNDS):
        after = len(await replicas[0].read_log())
        sessions = await replicas[0].spawn_tree(3, 2)
        parents = sessions[1:4]
        spawns = [
            runtime.spawn_lane.submit(spawn_command(parent_id=row.id))
            for row, runtime, _ in product(parents, replicas, range(4))
        ]
        termination = asyncio.ensure_future(replicas[1].terminate(sessions[0]))
        late = [
            runtime.spawn_lane.submit(spawn_command(parent_id=row.id)) for row, runtime in product(parents, replicas)
        ]
        outcomes = await asyncio.gather(*spawns, *late, return_exceptions=True)
        receipt = await termination
        admitted = [outcome.session for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert set(result_names(outcomes)) <= {"Spawned", "parent_not_found"}
        assert receipt.asked == receipt.stopped == len(sessions) + len(admitted)
        await assert_ended_once_and_in_order(replicas[2], sessions + admitted, after)


async def test_token_of_a_marked_session_is_refused_on_every_replica(replicas: list[RuntimeHarness]) -> None:
    sessions = await replicas[0].spawn_tree(5)
    await mark(replicas[0], sessions[0])
    for runtime, row in product(replicas, sessions):
        bearer = msgspec.structs.replace(admin(), session_id=row.id)
        with pytest.raises(Problem) as problem:
            await runtime.spawn(caller=bearer)
        assert problem.value.code == "session_ended"


# -- rows that no operation creates


@pytest.mark.parametrize("top", [0, 1, 2, 3])
@pytest.mark.parametrize("chunk", [1_000, 2])
async def test_cycle_of_parents_is_terminated_completely_from_any_session(
    engine_url: str, chunk: int, top: int
) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=chunk)) as runtime:
        await runtime.put_zone()
        sessions = await runtime.spawn_tree(1, 1, 2)
        other = await runtime.spawn()
        runtime.database.execute("update agent_sessions set parent_id = ? where id = ?", sessions[2].id, sessions[0].id)
        async with asyncio.timeout(30):
            receipt = await runtime.terminate(sessions[top])
        # The last session is below the cycle and has no descendants.
        expected = [sessions[3]] if top == 3 else sessions
        assert (receipt.stopped, receipt.left) == (len(expected), [])
        assert runtime.database.count("agent_sessions", "status = 'terminated'") == len(expected)
        terminated_ids = [event.subject for event in await runtime.read_log() if event.type == "session.terminate"]
        assert sorted(terminated_ids) == sorted(row.id for row in expected)
        assert (await runtime.read_session(other)).status is State.ACTIVE


async def test_session_that_is_its_own_parent_can_be_terminated(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    runtime.database.execute("update agent_sessions set parent_id = id where id = ?", root.id)
    async with asyncio.timeout(30):
        assert (await runtime.terminate(root)).stopped == 1


@pytest.mark.parametrize("scope", ["zone", "application", "tree", "parent", "concurrent"])
async def test_termination_succeeds_when_a_counter_is_too_small(runtime: RuntimeHarness, scope: str) -> None:
    # Termination succeeds in spite of the wrong count; `qd check` reports it.
    sessions = await runtime.spawn_tree(2)
    runtime.database.execute("update admission_counts set live = 0 where scope = ?", scope)
    assert (await runtime.terminate(sessions[0])).stopped == 3
    assert runtime.database.count("admission_counts", "live <> 0") == 0
