"""Cascades: a large tree is marked in one transaction and terminated in chunks, children before parents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.clock import SECOND
from quarterdeck.core.errors import LimitReached
from quarterdeck.domain.sessions.model import (
    FinishCascade,
    FinishCascadeResult,
    Receipt,
    RemainingSession,
    Session,
    State,
    Terminate,
    TerminateResult,
)
from quarterdeck.domain.zones.model import ShowZone
from quarterdeck.engine.event_log import Event
from tests.support.builders import APP, NOW, ZONE, admin, caller, spawn_command
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime, result_names
from tests.support.session_trees import DATABASE_EXAMPLES, shapes, subtree_ids

CHUNK = 4
_numbers = count()


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url, RuntimeOptions(chunk=CHUNK)) as runtime:
        await runtime.put_zone()
        yield runtime


async def mark(runtime: RuntimeHarness, session: Session, reason: str = "obsolete") -> TerminateResult:
    """Start a termination and stop before its first chunk, as if the requesting process were killed."""
    return await runtime.terminate_lane.submit(
        Terminate(session.zone_id, session.id, reason, admin(session.zone_id), "00-trace")
    )


async def finish_chunk(runtime: RuntimeHarness, result: TerminateResult) -> bool:
    assert result.cascade_id
    return (await runtime.finish_cascade_lane.submit(FinishCascade(result.zone_id, result.cascade_id))).finished


async def termination_events(runtime: RuntimeHarness, zone_id: str = ZONE) -> list[Event]:
    return [e for e in await runtime.read_log() if e.type == "session.terminate" and e.zone_id == zone_id]


def count_terminated(runtime: RuntimeHarness, zone_id: str = ZONE) -> int:
    return runtime.database.count("agent_sessions", "zone_id = ? and status = 'terminated'", zone_id)


async def spawn_shape(runtime: RuntimeHarness, shape: Sequence[int | None]) -> list[Session]:
    """Spawn sessions with these parents in a new zone."""
    zone_id = f"tree-{next(_numbers)}"
    await runtime.put_zone(zone_id)
    sessions: list[Session] = []
    for parent in shape:
        sessions.append(await runtime.spawn(zone_id, parent_id=None if parent is None else sessions[parent].id))
    return sessions


def assert_children_before_parents(events: Sequence[Event], sessions: Sequence[Session]) -> None:
    """Each session ends once, after its children."""
    positions = {event.subject: position for position, event in enumerate(events)}
    assert len(positions) == len(events)
    for session in sessions:
        if session.id in positions and session.parent_id in positions:
            assert positions[session.id] < positions[session.parent_id]


# -- marks and chunks


async def test_large_tree_is_marked_in_one_transaction_and_terminated_in_chunks(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(3, 3)
    before = await runtime.read_log()
    result = await mark(runtime, sessions[0])
    assert (result.stopped, result.joined, count_terminated(runtime)) == (13, False, 0)
    assert (
        runtime.database.count("agent_sessions", "terminated_at is not null and cascade_id = ?", result.cascade_id)
        == 13
    )
    [begun] = (await runtime.read_log())[len(before) :]
    assert (begun.type, begun.subject) == ("cascade.begin", sessions[0].id), (
        "each session's event follows with its chunk"
    )
    assert msgspec.json.decode(begun.data) == {"cascade_id": result.cascade_id, "stamped": 13, "reason": result.reason}
    for expected in (4, 8, 12):
        assert not await finish_chunk(runtime, result)
        assert (count_terminated(runtime), len(await termination_events(runtime))) == (expected, expected)
    assert await finish_chunk(runtime, result)
    assert count_terminated(runtime) == 13
    assert await finish_chunk(runtime, result), "finishing a finished cascade changes nothing"
    assert len(await termination_events(runtime)) == 13
    assert runtime.database.execute("select stamped, settled from cascades where finished_at is not null") == [(13, 13)]


@pytest.mark.parametrize(("width", "is_marked"), [(CHUNK - 2, False), (CHUNK - 1, False), (CHUNK, True)])
async def test_tree_within_the_chunk_size_is_terminated_in_one_transaction(
    runtime: RuntimeHarness, width: int, is_marked: bool
) -> None:
    sessions = await runtime.spawn_tree(width)
    result = await mark(runtime, sessions[0])
    assert (result.cascade_id is not None) == is_marked
    assert count_terminated(runtime) == (0 if is_marked else len(sessions))
    assert runtime.database.count("cascades") == int(is_marked)


async def test_tree_of_exactly_two_chunks_is_finished(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(2 * CHUNK - 1)
    receipt = await runtime.terminate(sessions[0])
    assert (receipt.stopped, count_terminated(runtime), receipt.left) == (2 * CHUNK, 2 * CHUNK, [])
    assert runtime.database.count("cascades", "finished_at is null") == 0


@DATABASE_EXAMPLES
@given(shape=shapes(14, one_tree=True))
async def test_log_has_each_session_directly_after_its_descendants(
    runtime: RuntimeHarness, shape: list[int | None]
) -> None:
    sessions = await spawn_shape(runtime, shape)
    await runtime.terminate(sessions[0])
    order = [event.subject for event in await termination_events(runtime, sessions[0].zone_id)]
    assert sorted(order) == sorted(row.id for row in sessions)
    for position, session_id in enumerate(order):
        branch = subtree_ids(session_id, sessions)
        assert set(order[position + 1 - len(branch) : position + 1]) == branch


async def test_chain_of_a_hundred_sessions_is_terminated_from_leaf_to_root(runtime: RuntimeHarness) -> None:
    chain = [await runtime.spawn()]
    for _ in range(100):
        chain.append(await runtime.spawn(parent_id=chain[-1].id))
    await runtime.terminate(chain[0])
    assert [event.subject for event in await termination_events(runtime)] == [row.id for row in reversed(chain)]
    assert_counts_match_rows(runtime.database)


async def test_every_termination_event_has_actor_trace_reason_and_cause(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(5)
    await runtime.suspend(sessions[1])
    command = Terminate(ZONE, sessions[0].id, "obsolete", caller(APP), "00-ab-cd-01")
    await runtime.cascade_runner.terminate(command)
    for event in await termination_events(runtime):
        assert (event.actor, event.trace, event.to_state) == ("tester", "00-ab-cd-01", "terminated")
        assert event.from_state == ("suspended" if event.subject == sessions[1].id else "active")
        assert msgspec.json.decode(event.data) == {
            "reason": "obsolete",
            "cause": sessions[0].id,
            "session_sid": "sid",
            "root_id": sessions[0].id,
            "sid_in_use": False,
        }


async def test_terminated_at_is_the_time_of_the_mark_not_of_the_chunk(sqlite_url: str) -> None:
    time = [NOW]
    async with open_runtime(sqlite_url, RuntimeOptions(chunk=1, clock=lambda: time[0])) as runtime:
        await runtime.put_zone()
        sessions = await runtime.spawn_tree(2)
        time[0] += SECOND
        result = await mark(runtime, sessions[0])
        marked = [await runtime.read_session(row) for row in sessions]
        time[0] += 60 * SECOND
        await runtime.cascade_runner.run_to_end(result)
        for row, before in zip(sessions, marked, strict=True):
            after = await runtime.read_session(row)
            assert after.terminated_at == before.terminated_at == NOW + SECOND
            assert msgspec.structs.replace(after, updated_at=before.updated_at) == before


async def test_expired_sessions_keep_their_reason_and_time_in_a_cascade(runtime: RuntimeHarness) -> None:
    root, left, right, *others = await runtime.spawn_tree(2, 2)
    expired = [left, *(row for row in others if row.parent_id == left.id)]
    runtime.database.expire_sessions(*expired)
    await runtime.terminate(root, "obsolete")
    for row in (root, left, right, *others):
        session = await runtime.read_session(row)
        assert session.termination_reason == ("ttl_expired" if row in expired else "obsolete")
        assert (session.terminated_at == session.expires_at) == (row in expired)
    reasons = {event.subject: msgspec.json.decode(event.data)["reason"] for event in await termination_events(runtime)}
    assert {session_id for session_id, reason in reasons.items() if reason == "ttl_expired"} == {
        row.id for row in expired
    }


# -- marked sessions read as terminated


async def test_marked_sessions_free_their_quota_immediately_and_once(runtime: RuntimeHarness) -> None:
    other = await runtime.spawn()
    sessions = await runtime.spawn_tree(5)
    await runtime.put_zone(max_sessions=7)
    with pytest.raises(LimitReached):
        await runtime.spawn()
    result = await mark(runtime, sessions[0])
    assert_counts_match_rows(runtime.database)
    usage = await runtime.show_zone_lane.submit(ShowZone(ZONE))
    assert (usage.sessions, usage.concurrent) == (1, 0)
    for _ in range(6):
        await runtime.spawn(parent_id=other.id)
    with pytest.raises(LimitReached) as problem:
        await runtime.spawn()
    assert problem.value.members["used"] == 7
    await runtime.cascade_runner.run_to_end(result)
    assert_counts_match_rows(runtime.database)


async def test_marked_session_frees_its_idempotency_key(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn(key="k", digest="one")
    for _ in range(CHUNK):
        await runtime.spawn(parent_id=root.id)
    assert (await mark(runtime, root)).cascade_id
    spawned = await runtime.spawn_lane.submit(spawn_command(key="k", digest="two"))
    assert spawned.created
    assert spawned.session.id != root.id


async def test_marked_sessions_that_expire_are_not_swept_or_subtracted_twice(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(5)
    result = await mark(runtime, sessions[0])
    runtime.database.expire_sessions(*sessions)
    assert await runtime.run_sweep() == 0
    usage = await runtime.show_zone_lane.submit(ShowZone(ZONE))
    assert (usage.sessions, usage.concurrent) == (0, 0)
    await runtime.put_zone(max_sessions=0)
    with pytest.raises(LimitReached) as problem:
        await runtime.spawn()
    assert problem.value.members["used"] == 0
    await runtime.cascade_runner.run_to_end(result)
    assert {(await runtime.read_session(row)).termination_reason for row in sessions} == {"obsolete"}


# -- overlapping terminations


async def test_second_termination_joins_the_first_and_its_receipt_says_so(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(3, 1)
    first = await mark(runtime, sessions[0], "first")
    assert not await finish_chunk(runtime, first)
    second = await runtime.terminate(sessions[0], "second")
    assert second == Receipt(ZONE, sessions[0].id, first.cascade_id, "first", 7, 0, 7, 0, True, [])
    assert count_terminated(runtime) == 7, "it returns when the cascade has finished"
    third = await runtime.terminate(sessions[0], "third")
    assert third == Receipt(ZONE, sessions[0].id, None, "third", 7, 0, 7, 0, False, [])
    assert len(await termination_events(runtime)) == 7


async def test_terminating_part_of_a_marked_tree_joins_its_cascade(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(3, 1)
    first = await mark(runtime, sessions[0])
    receipt = await runtime.terminate(sessions[1])
    assert (receipt.cascade_id, receipt.joined) == (first.cascade_id, True)
    assert (receipt.asked, receipt.stopped, receipt.already_stopped) == (2, 0, 2)


@pytest.mark.parametrize("chunks", [0, 1])
async def test_tree_terminated_during_its_branch_ends_after_the_branch(runtime: RuntimeHarness, chunks: int) -> None:
    sessions = await runtime.spawn_tree(2, 5)
    branch = await mark(runtime, sessions[1], "branch")
    for _ in range(chunks):
        await finish_chunk(runtime, branch)
    receipt = await runtime.terminate(sessions[0], "tree")
    assert (receipt.asked, receipt.stopped, receipt.already_stopped, receipt.joined) == (13, 7, 6, False)
    events = await termination_events(runtime)
    assert_children_before_parents(events, sessions)
    assert {event.subject for event in events[:6]} == subtree_ids(sessions[1].id, sessions), (
        "the cascade that marked first finishes first"
    )
    reasons = [(await runtime.read_session(row)).termination_reason for row in (sessions[0], sessions[1])]
    assert reasons == ["tree", "branch"]
    assert_counts_match_rows(runtime.database)


async def test_small_remainder_of_a_tree_waits_for_its_marked_branch(runtime: RuntimeHarness) -> None:
    # The root alone fits into one transaction, but it would then end before its children.
    sessions = await runtime.spawn_tree(1, 5)
    await mark(runtime, sessions[1])
    tree = await mark(runtime, sessions[0])
    assert (tree.stopped, tree.joined) == (1, False)
    assert tree.cascade_id
    assert await termination_events(runtime) == []
    await runtime.cascade_runner.run_to_end(tree)
    assert_children_before_parents(await termination_events(runtime), sessions)
    assert runtime.database.count("cascades", "finished_at is null") == 0


SCRIPT = st.lists(
    st.one_of(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(1, 3)), min_size=1, max_size=6
)
"""A list is a batch of terminations, by session index. A number is how many chunks to run in between."""


@DATABASE_EXAMPLES
@given(shape=shapes(14), script=SCRIPT)
async def test_overlapping_terminations_end_each_session_once_children_first(
    runtime: RuntimeHarness, shape: list[int | None], script: list[list[int] | int]
) -> None:
    sessions = await spawn_shape(runtime, shape)
    zone_id, expected, results = sessions[0].zone_id, set[str](), list[TerminateResult]()
    for step in script:
        if isinstance(step, list):
            targets = [sessions[index % len(sessions)] for index in step]
            results += await asyncio.gather(*(mark(runtime, row, f"terminate {row.id}") for row in targets))
            expected |= {session_id for row in targets for session_id in subtree_ids(row.id, sessions)}
            terminated = {row.id for row in sessions if (await runtime.read_session(row)).status is State.TERMINATED}
            assert terminated == expected, "exactly the marked sessions read as terminated"
        else:
            for _ in range(step):
                await runtime.finish_cascade_lane.submit(FinishCascade(zone_id, "any"))
    assert sum(result.stopped for result in results) == len(expected)
    await asyncio.gather(*(runtime.cascade_runner.run_to_end(result) for result in results))
    events = await termination_events(runtime, zone_id)
    assert {event.subject for event in events} == expected
    assert_children_before_parents(events, sessions)
    assert count_terminated(runtime, zone_id) == len(expected)
    assert runtime.database.count("cascades", "finished_at is null or stamped <> settled") == 0
    assert_counts_match_rows(runtime.database)


async def test_cascades_of_several_zones_progress_side_by_side(runtime: RuntimeHarness) -> None:
    zones = [f"zone-{number}" for number in range(3)]
    results = []
    for zone_id in zones:
        await runtime.put_zone(zone_id)
        results.append(await mark(runtime, (await runtime.spawn_tree(9, zone_id=zone_id))[0]))
    first = await asyncio.gather(*(finish_chunk(runtime, result) for result in results))
    assert not any(first)
    counts = [count_terminated(runtime, zone_id) for zone_id in zones]
    assert all(counts), "no zone waits for another"
    assert sum(counts) <= CHUNK, "one transaction takes at most one chunk for all zones together"
    await asyncio.gather(*map(runtime.cascade_runner.run_to_end, results))
    assert [count_terminated(runtime, zone_id) for zone_id in zones] == [10, 10, 10]
    assert_counts_match_rows(runtime.database)


async def test_finishing_an_unknown_cascade_succeeds_and_an_unknown_zone_is_not_found(runtime: RuntimeHarness) -> None:
    commands = [FinishCascade(ZONE, "missing"), FinishCascade("missing", "missing")]
    outcomes = await asyncio.gather(*map(runtime.finish_cascade_lane.submit, commands), return_exceptions=True)
    assert outcomes[0] == FinishCascadeResult(True)
    assert result_names(outcomes) == ["FinishCascadeResult", "zone_not_found"]


# -- receipts


async def test_receipt_counts_stopped_and_already_stopped_sessions(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(2, 3)
    await runtime.terminate(sessions[1])
    receipt = await runtime.terminate(sessions[0], "obsolete")
    assert (receipt.asked, receipt.stopped, receipt.already_stopped) == (9, 5, 4)
    assert (receipt.session_id, receipt.reason, receipt.left) == (sessions[0].id, "obsolete", [])
    assert receipt.cascade_id == runtime.database.scalar("select id from cascades")


async def test_receipt_lists_remaining_sessions_with_reasons(runtime: RuntimeHarness) -> None:
    sessions = await runtime.spawn_tree(5)
    result = await mark(runtime, sessions[0])
    await finish_chunk(runtime, result)
    receipt = await runtime.read_receipt(result)
    assert (receipt.asked, receipt.stopped) == (6, 6)
    remaining = {row.id for row in sessions} - {event.subject for event in await termination_events(runtime)}
    assert {left.session_id for left in receipt.left} == remaining
    assert len(remaining) == 2
    assert all("marked" in left.reason for left in receipt.left)


async def test_receipt_lists_at_most_a_hundred_remaining_sessions(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await asyncio.gather(*(runtime.spawn_lane.submit(spawn_command(parent_id=root.id)) for _ in range(120)))
    receipt = await runtime.read_receipt(await mark(runtime, root))
    assert len(receipt.left) == 100
    assert all(isinstance(left, RemainingSession) for left in receipt.left)
    assert (receipt.asked, receipt.stopped) == (121, 121)
