"""Endings of many transactions: stamped whole, settled in chunks, children first, whoever asks, joins or is killed."""

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
from quarterdeck.domain.zones.model import ZoneRef
from quarterdeck.engine.event_log import Event
from tests.support.builders import APP, NOW, ZONE, admin, caller, spawn_command
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime, result_names
from tests.support.session_trees import DATABASE_EXAMPLES, shapes, subtree_ids

CHUNK = 4
_numbers = count()


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url, RuntimeOptions(chunk=CHUNK)) as laid:
        await laid.put_zone()
        yield laid


async def stamp(keel: RuntimeHarness, session: Session, reason: str = "enough") -> TerminateResult:
    """An ending whose asker is killed before anything of it is settled."""
    return await keel.terminate_lane.submit(
        Terminate(session.zone_id, session.id, reason, admin(session.zone_id), "00-trace")
    )


async def settle(keel: RuntimeHarness, ended: TerminateResult) -> bool:
    assert ended.cascade_id
    return (await keel.finish_cascade_lane.submit(FinishCascade(ended.zone_id, ended.cascade_id))).finished


async def endings(keel: RuntimeHarness, zone_id: str = ZONE) -> list[Event]:
    return [e for e in await keel.read_log() if e.type == "session.terminate" and e.zone_id == zone_id]


def settled(keel: RuntimeHarness, zone_id: str = ZONE) -> int:
    return keel.database.count("agent_sessions", "zone_id = ? and status = 'terminated'", zone_id)


async def grown(keel: RuntimeHarness, shape: Sequence[int | None]) -> list[Session]:
    """Sessions in this shape, in a zone of their own."""
    zone_id = f"grown-{next(_numbers)}"
    await keel.put_zone(zone_id)
    made: list[Session] = []
    for parent in shape:
        made.append(await keel.spawn(zone_id, parent_id=None if parent is None else made[parent].id))
    return made


def assert_children_before_parents(ended: Sequence[Event], sessions: Sequence[Session]) -> None:
    """And each once."""
    places = {event.subject: place for place, event in enumerate(ended)}
    assert len(places) == len(ended)
    for session in sessions:
        if session.id in places and session.parent_id in places:
            assert places[session.id] < places[session.parent_id]


# -- stamp and chunks


async def test_a_large_tree_is_stamped_in_one_transaction_and_settled_in_chunks(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(3, 3)
    before = await runtime.read_log()
    ended = await stamp(runtime, made[0])
    assert (ended.stopped, ended.joined, settled(runtime)) == (13, False, 0)
    assert (
        runtime.database.count("agent_sessions", "terminated_at is not null and cascade_id = ?", ended.cascade_id) == 13
    )
    [begun] = (await runtime.read_log())[len(before) :]
    assert (begun.type, begun.subject) == ("cascade.begin", made[0].id), "each is told of when it is settled"
    assert msgspec.json.decode(begun.data) == {"cascade_id": ended.cascade_id, "stamped": 13, "reason": ended.reason}
    for so_far in (4, 8, 12):
        assert not await settle(runtime, ended)
        assert (settled(runtime), len(await endings(runtime))) == (so_far, so_far)
    assert await settle(runtime, ended)
    assert settled(runtime) == 13
    assert await settle(runtime, ended), "what is over stays over"
    assert len(await endings(runtime)) == 13
    assert runtime.database.execute("select stamped, settled from cascades where finished_at is not null") == [(13, 13)]


@pytest.mark.parametrize(("width", "stamps"), [(CHUNK - 2, False), (CHUNK - 1, False), (CHUNK, True)])
async def test_what_fits_into_a_chunk_is_one_transaction(runtime: RuntimeHarness, width: int, stamps: bool) -> None:
    made = await runtime.spawn_tree(width)
    ended = await stamp(runtime, made[0])
    assert (ended.cascade_id is not None) == stamps
    assert settled(runtime) == (0 if stamps else len(made))
    assert runtime.database.count("cascades") == int(stamps)


async def test_a_tree_of_exactly_so_many_chunks_is_finished_too(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2 * CHUNK - 1)
    receipt = await runtime.terminate(made[0])
    assert (receipt.stopped, settled(runtime), receipt.left) == (2 * CHUNK, 2 * CHUNK, [])
    assert runtime.database.count("cascades", "finished_at is null") == 0


@DATABASE_EXAMPLES
@given(shape=shapes(14, one_tree=True))
async def test_in_the_log_each_ends_after_all_its_descendants_and_branch_by_branch(
    runtime: RuntimeHarness, shape: list[int | None]
) -> None:
    made = await grown(runtime, shape)
    await runtime.terminate(made[0])
    order = [event.subject for event in await endings(runtime, made[0].zone_id)]
    assert sorted(order) == sorted(row.id for row in made)
    for place, own in enumerate(order):
        branch = subtree_ids(own, made)
        assert set(order[place + 1 - len(branch) : place + 1]) == branch


async def test_a_line_of_a_hundred_ends_from_its_tip_to_its_root(runtime: RuntimeHarness) -> None:
    line = [await runtime.spawn()]
    for _ in range(100):
        line.append(await runtime.spawn(parent_id=line[-1].id))
    await runtime.terminate(line[0])
    assert [event.subject for event in await endings(runtime)] == [row.id for row in reversed(line)]
    assert_counts_match_rows(runtime.database)


async def test_every_event_says_who_asked_with_what_trace_why_and_about_whom(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(5)
    await runtime.suspend(made[1])
    asked = Terminate(ZONE, made[0].id, "enough", caller(APP), "00-ab-cd-01")
    await runtime.cascade_runner.terminate(asked)
    for event in await endings(runtime):
        assert (event.actor, event.trace, event.to_state) == ("tester", "00-ab-cd-01", "terminated")
        assert event.from_state == ("suspended" if event.subject == made[1].id else "active")
        assert msgspec.json.decode(event.data) == {
            "reason": "enough",
            "cause": made[0].id,
            "session_sid": "sid",
            "root_id": made[0].id,
            "sid_in_use": False,
        }


async def test_a_session_ends_when_it_is_stamped_however_late_it_is_settled(sqlite_url: str) -> None:
    time = [NOW]
    async with open_runtime(sqlite_url, RuntimeOptions(chunk=1, clock=lambda: time[0])) as keel:
        await keel.put_zone()
        made = await keel.spawn_tree(2)
        time[0] += SECOND
        ended = await stamp(keel, made[0])
        read = [await keel.read_session(row) for row in made]
        time[0] += 60 * SECOND
        await keel.cascade_runner.run_to_end(ended)
        for row, before in zip(made, read, strict=True):
            after = await keel.read_session(row)
            assert after.terminated_at == before.terminated_at == NOW + SECOND
            assert msgspec.structs.replace(after, updated_at=before.updated_at) == before


async def test_what_had_expired_keeps_its_reason_and_its_instant(runtime: RuntimeHarness) -> None:
    root, left, right, *others = await runtime.spawn_tree(2, 2)
    gone = [left, *(row for row in others if row.parent_id == left.id)]
    runtime.database.expire_sessions(*gone)
    await runtime.terminate(root, "enough")
    for row in (root, left, right, *others):
        shown = await runtime.read_session(row)
        assert shown.termination_reason == ("ttl_expired" if row in gone else "enough")
        assert (shown.terminated_at == shown.expires_at) == (row in gone)
    reasons = {e.subject: msgspec.json.decode(e.data)["reason"] for e in await endings(runtime)}
    assert {own for own, reason in reasons.items() if reason == "ttl_expired"} == {row.id for row in gone}


# -- what is stamped has ended, for everybody


async def test_what_is_stamped_gives_back_its_places_at_once_and_only_once(runtime: RuntimeHarness) -> None:
    other = await runtime.spawn()
    made = await runtime.spawn_tree(5)
    await runtime.put_zone(max_sessions=7)
    with pytest.raises(LimitReached):
        await runtime.spawn()
    ended = await stamp(runtime, made[0])
    assert_counts_match_rows(runtime.database)
    use = await runtime.show_zone_lane.submit(ZoneRef(ZONE))
    assert (use.sessions, use.concurrent) == (1, 0)
    for _ in range(6):
        await runtime.spawn(parent_id=other.id)
    with pytest.raises(LimitReached) as refused:
        await runtime.spawn()
    assert refused.value.members["used"] == 7
    await runtime.cascade_runner.run_to_end(ended)
    assert_counts_match_rows(runtime.database)


async def test_what_is_stamped_frees_its_key_for_another_body(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn(key="k", digest="one")
    for _ in range(CHUNK):
        await runtime.spawn(parent_id=root.id)
    assert (await stamp(runtime, root)).cascade_id
    again = await runtime.spawn_lane.submit(spawn_command(key="k", digest="two"))
    assert again.created
    assert again.session.id != root.id


async def test_what_is_stamped_is_not_swept_as_expired_and_not_subtracted_twice(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(5)
    ended = await stamp(runtime, made[0])
    runtime.database.expire_sessions(*made)
    assert await runtime.run_sweep() == 0
    use = await runtime.show_zone_lane.submit(ZoneRef(ZONE))
    assert (use.sessions, use.concurrent) == (0, 0)
    await runtime.put_zone(max_sessions=0)
    with pytest.raises(LimitReached) as refused:
        await runtime.spawn()
    assert refused.value.members["used"] == 0
    await runtime.cascade_runner.run_to_end(ended)
    assert {(await runtime.read_session(row)).termination_reason for row in made} == {"enough"}


# -- endings that meet


async def test_a_second_delete_joins_the_first_and_says_so(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(3, 1)
    first = await stamp(runtime, made[0], "first")
    assert not await settle(runtime, first)
    second = await runtime.terminate(made[0], "second")
    assert second == Receipt(ZONE, made[0].id, first.cascade_id, "first", 7, 0, 7, 0, True, [])
    assert settled(runtime) == 7, "it returns when all of it is over"
    third = await runtime.terminate(made[0], "third")
    assert third == Receipt(ZONE, made[0].id, None, "third", 7, 0, 7, 0, False, [])
    assert len(await endings(runtime)) == 7


async def test_whoever_ends_a_part_of_what_is_ending_joins_and_waits_for_all_of_it(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(3, 1)
    first = await stamp(runtime, made[0])
    receipt = await runtime.terminate(made[1])
    assert (receipt.cascade_id, receipt.joined) == (first.cascade_id, True)
    assert (receipt.asked, receipt.stopped, receipt.already_stopped) == (2, 0, 2)


@pytest.mark.parametrize("chunks", [0, 1])
async def test_a_tree_that_ends_while_its_branch_does_ends_after_it(runtime: RuntimeHarness, chunks: int) -> None:
    made = await runtime.spawn_tree(2, 5)
    branch = await stamp(runtime, made[1], "branch")
    for _ in range(chunks):
        await settle(runtime, branch)
    receipt = await runtime.terminate(made[0], "tree")
    assert (receipt.asked, receipt.stopped, receipt.already_stopped, receipt.joined) == (13, 7, 6, False)
    ended = await endings(runtime)
    assert_children_before_parents(ended, made)
    assert {event.subject for event in ended[:6]} == subtree_ids(made[1].id, made), "what was stamped first, first"
    reasons = [(await runtime.read_session(row)).termination_reason for row in (made[0], made[1])]
    assert reasons == ["tree", "branch"]
    assert_counts_match_rows(runtime.database)


async def test_a_small_rest_of_a_tree_waits_for_the_large_branch_that_is_ending(runtime: RuntimeHarness) -> None:
    # The root alone would fit into its transaction, but then it would end before its children.
    made = await runtime.spawn_tree(1, 5)
    await stamp(runtime, made[1])
    tree = await stamp(runtime, made[0])
    assert (tree.stopped, tree.joined) == (1, False)
    assert tree.cascade_id
    assert await endings(runtime) == []
    await runtime.cascade_runner.run_to_end(tree)
    assert_children_before_parents(await endings(runtime), made)
    assert runtime.database.count("cascades", "finished_at is null") == 0


SCRIPT = st.lists(
    st.one_of(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(1, 3)), min_size=1, max_size=6
)
"""Endings that are asked for in one batch, and in between so many chunks."""


@DATABASE_EXAMPLES
@given(shape=shapes(14), script=SCRIPT)
async def test_however_endings_overlap_each_session_ends_once_and_no_parent_before_its_children(
    runtime: RuntimeHarness, shape: list[int | None], script: list[list[int] | int]
) -> None:
    made = await grown(runtime, shape)
    zone_id, asked, outcomes = made[0].zone_id, set[str](), list[TerminateResult]()
    for step in script:
        if isinstance(step, list):
            targets = [made[which % len(made)] for which in step]
            outcomes += await asyncio.gather(*(stamp(runtime, row, f"to end {row.id}") for row in targets))
            asked |= {own for row in targets for own in subtree_ids(row.id, made)}
            read = {row.id for row in made if (await runtime.read_session(row)).status is State.TERMINATED}
            assert read == asked, "from the stamp on they read as terminated, and nobody else does"
        else:
            for _ in range(step):
                await runtime.finish_cascade_lane.submit(FinishCascade(zone_id, "whichever is the oldest"))
    assert sum(ended.stopped for ended in outcomes) == len(asked)
    await asyncio.gather(*(runtime.cascade_runner.run_to_end(ended) for ended in outcomes))
    ended = await endings(runtime, zone_id)
    assert {event.subject for event in ended} == asked
    assert_children_before_parents(ended, made)
    assert settled(runtime, zone_id) == len(asked)
    assert runtime.database.count("cascades", "finished_at is null or stamped <> settled") == 0
    assert_counts_match_rows(runtime.database)


async def test_cascades_of_several_zones_settle_side_by_side(runtime: RuntimeHarness) -> None:
    zones = [f"zone-{number}" for number in range(3)]
    ended = []
    for zone_id in zones:
        await runtime.put_zone(zone_id)
        ended.append(await stamp(runtime, (await runtime.spawn_tree(9, zone_id=zone_id))[0]))
    first = await asyncio.gather(*(settle(runtime, each) for each in ended))
    assert not any(first)
    moved = [settled(runtime, zone_id) for zone_id in zones]
    assert all(moved), "no zone waits for another"
    assert sum(moved) <= CHUNK, "and one transaction settles no more than a chunk for all of them"
    await asyncio.gather(*map(runtime.cascade_runner.run_to_end, ended))
    assert [settled(runtime, zone_id) for zone_id in zones] == [10, 10, 10]
    assert_counts_match_rows(runtime.database)


async def test_settling_what_nobody_knows_is_over_at_once_and_in_no_zone_is_not_found(runtime: RuntimeHarness) -> None:
    asks = [FinishCascade(ZONE, "nothing"), FinishCascade("nowhere", "nothing")]
    outcomes = await asyncio.gather(*map(runtime.finish_cascade_lane.submit, asks), return_exceptions=True)
    assert outcomes[0] == FinishCascadeResult(True)
    assert result_names(outcomes) == ["FinishCascadeResult", "zone_not_found"]


# -- receipts


async def test_a_receipt_counts_what_this_ending_stopped_and_what_had_stopped_before(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 3)
    await runtime.terminate(made[1])
    receipt = await runtime.terminate(made[0], "enough")
    assert (receipt.asked, receipt.stopped, receipt.already_stopped) == (9, 5, 4)
    assert (receipt.session_id, receipt.reason, receipt.left) == (made[0].id, "enough", [])
    assert receipt.cascade_id == runtime.database.scalar("select id from cascades")


async def test_a_receipt_names_what_is_left_and_why(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(5)
    ended = await stamp(runtime, made[0])
    await settle(runtime, ended)
    receipt = await runtime.read_receipt(ended)
    assert (receipt.asked, receipt.stopped) == (6, 6)
    waiting = {row.id for row in made} - {event.subject for event in await endings(runtime)}
    assert {left.session_id for left in receipt.left} == waiting
    assert len(waiting) == 2
    assert all("stamped" in left.reason for left in receipt.left)


async def test_a_receipt_names_at_most_a_hundred_that_are_left(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await asyncio.gather(*(runtime.spawn_lane.submit(spawn_command(parent_id=root.id)) for _ in range(120)))
    receipt = await runtime.read_receipt(await stamp(runtime, root))
    assert len(receipt.left) == 100
    assert all(isinstance(left, RemainingSession) for left in receipt.left)
    assert (receipt.asked, receipt.stopped) == (121, 121)
