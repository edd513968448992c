"""Ending: whole subtrees, children before parents, once, with counts that go back to what the rows say."""

from __future__ import annotations

import asyncio
from itertools import product

import msgspec
import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Forbidden, NotFound, Problem
from quarterdeck.domain.sessions.model import Receipt, Session, State, Terminate
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.engine.event_log import Event
from tests.support.builders import ZONE, admin, caller, spawn_command
from tests.support.query_plans import read_statement
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, assert_counts_match_rows, result_names


def ids(sessions: list[Session]) -> set[str]:
    return {session.id for session in sessions}


async def endings(keel: RuntimeHarness) -> list[Event]:
    return [event for event in await keel.read_log() if event.type == "session.terminate"]


def assert_children_before_parents(ended: list[Event], sessions: list[Session]) -> None:
    order = {event.subject: event.pos for event in ended}
    for session in sessions:
        if session.id in order and session.parent_id in order:
            assert order[session.id] < order[session.parent_id]


async def test_a_session_takes_its_whole_subtree_with_it_and_nothing_else(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 3, 1)
    other = await runtime.spawn()
    top = made[1]
    below = await runtime.read_subtree(top)
    receipt = await runtime.terminate(top, "no longer needed")
    assert receipt == Receipt(ZONE, top.id, None, "no longer needed", 7, 7, 0, 0, False, [])
    for session in await runtime.read_subtree(top):
        assert session.status is State.TERMINATED
        assert session.termination_reason == "no longer needed"
        assert session.terminated_at == session.updated_at
        assert session.terminated_at is not None
    untouched = [session for session in [*made, other] if session.id not in ids(below)]
    assert len(untouched) == 9
    for session in untouched:
        assert await runtime.read_session(session) == session
    assert_counts_match_rows(runtime.database)


async def test_children_end_before_their_parents_in_the_log_and_each_says_why(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 2, 2)
    await runtime.terminate(made[0], "enough")
    ended = await endings(runtime)
    assert {event.subject for event in ended} == ids(made)
    assert len(ended) == len(made)
    assert_children_before_parents(ended, made)
    for event in ended:
        assert (event.from_state, event.to_state, event.actor) == ("active", "terminated", "tester")
        assert msgspec.json.decode(event.data) == {
            "reason": "enough",
            "cause": made[0].id,
            "session_sid": "sid",
            "root_id": made[0].id,
            "sid_in_use": False,
        }


async def test_a_tree_ends_depth_first_each_branch_before_the_next(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 2)
    await runtime.terminate(made[0], "enough")
    ended = [event.subject for event in await endings(runtime)]
    branches = [[s.id for s in made if s.parent_id == branch.id] + [branch.id] for branch in made if branch.depth == 1]
    assert ended in ([*branches[0], *branches[1], made[0].id], [*branches[1], *branches[0], made[0].id])


async def test_ending_what_has_ended_is_a_success_that_moves_nothing(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2)
    await runtime.terminate(made[0], "first")
    log, shown = await runtime.read_log(), await runtime.read_session(made[0])
    again = await runtime.terminate(made[0], "second")
    assert again == Receipt(ZONE, made[0].id, None, "second", 3, 0, 3, 0, False, [])
    assert await runtime.read_log() == log
    assert await runtime.read_session(made[0]) == shown
    assert_counts_match_rows(runtime.database)


async def test_a_half_ended_tree_is_ended_whole_and_only_the_rest_is_stopped(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 2)
    await runtime.terminate(made[1], "first")
    receipt = await runtime.terminate(made[0], "second")
    assert (receipt.asked, receipt.stopped, receipt.already_stopped) == (7, 4, 3)
    assert (await runtime.read_session(made[1])).termination_reason == "first"
    assert_counts_match_rows(runtime.database)


async def test_overlapping_asks_in_one_batch_end_each_session_once(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 2)
    asks = [Terminate(ZONE, own, f"by {i}", admin()) for i, own in enumerate([made[1].id, made[0].id, made[1].id])]
    outcomes = await asyncio.gather(*(runtime.terminate_lane.submit(asked) for asked in asks))
    assert [outcome.stopped for outcome in outcomes] == [3, 4, 0]
    ended = await endings(runtime)
    assert len(ended) == len({event.subject for event in ended}) == 7
    assert_children_before_parents(ended, made)
    assert (await runtime.read_session(made[1])).termination_reason == "by 0"
    assert_counts_match_rows(runtime.database)


async def test_suspended_sessions_end_too_and_say_so(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    runtime.database.execute("update agent_sessions set status = 'suspended' where id = ?", root.id)
    assert (await runtime.terminate(root)).stopped == 1
    [event] = await endings(runtime)
    assert event.from_state == "suspended"


async def test_nothing_moves_that_is_no_longer_in_the_state_it_was_read_in(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    for was, moved in (("suspended", 0), ("terminated", 0), ("active", 1), ("active", 0)):
        ending = Q.sessions_end(batch=[(ZONE, root.id, was, "x", 7)], now=7)
        [rows] = await runtime.store.transact(read_statement(ending), zones=[ZONE])
        assert len(rows) == moved


async def test_what_had_expired_is_ended_by_its_time_whoever_comes_to_say_so(runtime: RuntimeHarness) -> None:
    root, left, right = await runtime.spawn_tree(2)
    runtime.database.expire_sessions(left)
    await runtime.terminate(root, "requested")
    reasons = {own.id: (await runtime.read_session(own)).termination_reason for own in (root, left, right)}
    assert reasons == {root.id: "requested", left.id: "ttl_expired", right.id: "requested"}


async def test_a_reason_keeps_every_character_it_was_given(runtime: RuntimeHarness) -> None:
    reason = 'it\'s "done"; -- ü 🜁 \\ \t :reason $1 ?'
    root = await runtime.spawn()
    await runtime.terminate(root, reason)
    assert (await runtime.read_session(root)).termination_reason == reason


# -- refusals


async def test_unknown_sessions_and_other_zones_sessions_are_not_found(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign = await runtime.spawn("other")
    for own in ("nobody", foreign.id):
        with pytest.raises(NotFound) as refused:
            await runtime.terminate_lane.submit(Terminate(ZONE, own, "x", admin()))
        assert refused.value.code == "agent_not_found"
    with pytest.raises(NotFound) as refused:
        await runtime.terminate_lane.submit(Terminate("nowhere", foreign.id, "x", admin()))
    assert refused.value.code == "zone_not_found"
    assert (await runtime.read_session(foreign)).status is State.ACTIVE


@pytest.mark.parametrize(
    ("who", "may"),
    [
        (caller("app"), True),
        (caller("other", "coordinator.spawn_for:app"), True),
        (admin(), True),
        (caller("other"), False),
        (caller("other", "coordinator.spawn_for:another"), False),
    ],
)
async def test_ending_a_session_needs_power_over_its_application(
    runtime: RuntimeHarness, who: Caller, may: bool
) -> None:
    root = await runtime.spawn()
    ending = runtime.terminate_lane.submit(Terminate(ZONE, root.id, "x", who))
    if may:
        assert (await ending).stopped == 1
    else:
        with pytest.raises(Forbidden) as refused:
            await ending
        assert refused.value.code == "application_ownership_required"
        assert (await runtime.read_session(root)).status is State.ACTIVE


async def test_a_token_of_an_ended_session_ends_nothing(runtime: RuntimeHarness) -> None:
    bearer, victim = await runtime.spawn(), await runtime.spawn()
    await runtime.terminate(bearer)
    with pytest.raises(Problem) as refused:
        await runtime.terminate_lane.submit(Terminate(ZONE, victim.id, "x", caller(session_id=bearer.id)))
    assert refused.value.code == "session_ended"
    assert (await runtime.read_session(victim)).status is State.ACTIVE


async def test_a_session_may_end_itself(runtime: RuntimeHarness) -> None:
    own = await runtime.spawn()
    receipt = await runtime.terminate_lane.submit(Terminate(ZONE, own.id, "done", caller(session_id=own.id)))
    assert receipt.stopped == 1


async def test_refusals_and_endings_in_one_batch_do_not_disturb_each_other(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    here, there = await runtime.spawn(), await runtime.spawn("other")
    asks = [
        Terminate(ZONE, "nobody", "x", admin()),
        Terminate(ZONE, here.id, "x", admin()),
        Terminate("nowhere", here.id, "x", admin()),
        Terminate("other", there.id, "x", caller("stranger")),
        Terminate("other", there.id, "x", admin("other")),
    ]
    outcomes = await asyncio.gather(*(runtime.terminate_lane.submit(one) for one in asks), return_exceptions=True)
    assert result_names(outcomes) == [
        "agent_not_found",
        "TerminateResult",
        "zone_not_found",
        "application_ownership_required",
        "TerminateResult",
    ]
    assert_counts_match_rows(runtime.database)


# -- beside spawns


async def test_no_spawn_slips_into_a_subtree_that_ends(runtime: RuntimeHarness) -> None:
    for _ in range(ROUNDS):
        root, *children = await runtime.spawn_tree(3)
        spawns = [
            runtime.spawn_lane.submit(spawn_command(parent_id=child.id)) for child, _ in product(children, range(5))
        ]
        ending = runtime.terminate_lane.submit(Terminate(ZONE, root.id, "x", admin()))
        outcomes = await asyncio.gather(*spawns, return_exceptions=True)
        await ending
        assert set(result_names(outcomes)) <= {"Spawned", "parent_not_found"}
        left = runtime.database.count("agent_sessions", "root_id = ? and status <> 'terminated'", root.id)
        assert left == 0
    assert_counts_match_rows(runtime.database)


async def test_a_large_tree_ends_in_one_transaction(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await asyncio.gather(*(runtime.spawn_lane.submit(spawn_command(parent_id=root.id)) for _ in range(600)))
    receipt = await runtime.terminate(root)
    assert receipt.stopped == 601
    ended = await endings(runtime)
    assert [event.pos for event in ended] == list(range(ended[0].pos, ended[0].pos + 601))
    assert ended[-1].subject == root.id
    assert_counts_match_rows(runtime.database)
