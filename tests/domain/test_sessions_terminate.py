"""Termination of sessions: complete subtrees, children before parents, once, with exact counts."""

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


async def termination_events(runtime: RuntimeHarness) -> list[Event]:
    return [event for event in await runtime.read_log() if event.type == "session.terminate"]


def assert_children_before_parents(ended: list[Event], sessions: list[Session]) -> None:
    order = {event.subject: event.pos for event in ended}
    for session in sessions:
        if session.id in order and session.parent_id in order:
            assert order[session.id] < order[session.parent_id]


async def test_termination_ends_the_complete_subtree_and_nothing_else(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2, 3, 1)
    other = await runtime.spawn()
    top = tree[1]
    below = await runtime.read_subtree(top)
    receipt = await runtime.terminate(top, "no longer needed")
    assert receipt == Receipt(ZONE, top.id, None, "no longer needed", 7, 7, 0, 0, False, [])
    for session in await runtime.read_subtree(top):
        assert session.status is State.TERMINATED
        assert session.termination_reason == "no longer needed"
        assert session.terminated_at == session.updated_at
        assert session.terminated_at is not None
    untouched = [session for session in [*tree, other] if session.id not in ids(below)]
    assert len(untouched) == 9
    for session in untouched:
        assert await runtime.read_session(session) == session
    assert_counts_match_rows(runtime.database)


async def test_children_end_before_their_parents_and_each_event_has_the_reason(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2, 2, 2)
    await runtime.terminate(tree[0], "enough")
    ended = await termination_events(runtime)
    assert {event.subject for event in ended} == ids(tree)
    assert len(ended) == len(tree)
    assert_children_before_parents(ended, tree)
    for event in ended:
        assert (event.from_state, event.to_state, event.actor) == ("active", "terminated", "tester")
        assert msgspec.json.decode(event.data) == {
            "reason": "enough",
            "cause": tree[0].id,
            "session_sid": "sid",
            "root_id": tree[0].id,
            "sid_in_use": False,
        }


async def test_tree_ends_depth_first_one_branch_after_the_other(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2, 2)
    await runtime.terminate(tree[0], "enough")
    ended = [event.subject for event in await termination_events(runtime)]
    branches = [[s.id for s in tree if s.parent_id == branch.id] + [branch.id] for branch in tree if branch.depth == 1]
    assert ended in ([*branches[0], *branches[1], tree[0].id], [*branches[1], *branches[0], tree[0].id])


async def test_terminating_a_terminated_session_succeeds_and_changes_nothing(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2)
    await runtime.terminate(tree[0], "first")
    log, session = await runtime.read_log(), await runtime.read_session(tree[0])
    receipt = await runtime.terminate(tree[0], "second")
    assert receipt == Receipt(ZONE, tree[0].id, None, "second", 3, 0, 3, 0, False, [])
    assert await runtime.read_log() == log
    assert await runtime.read_session(tree[0]) == session
    assert_counts_match_rows(runtime.database)


async def test_terminating_a_partly_terminated_tree_stops_only_the_rest(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2, 2)
    await runtime.terminate(tree[1], "first")
    receipt = await runtime.terminate(tree[0], "second")
    assert (receipt.asked, receipt.stopped, receipt.already_stopped) == (7, 4, 3)
    assert (await runtime.read_session(tree[1])).termination_reason == "first"
    assert_counts_match_rows(runtime.database)


async def test_overlapping_terminations_in_one_batch_end_each_session_once(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2, 2)
    commands = [
        Terminate(ZONE, session_id, f"by {i}", admin())
        for i, session_id in enumerate([tree[1].id, tree[0].id, tree[1].id])
    ]
    results = await asyncio.gather(*(runtime.terminate_lane.submit(command) for command in commands))
    assert [result.stopped for result in results] == [3, 4, 0]
    ended = await termination_events(runtime)
    assert len(ended) == len({event.subject for event in ended}) == 7
    assert_children_before_parents(ended, tree)
    assert (await runtime.read_session(tree[1])).termination_reason == "by 0"
    assert_counts_match_rows(runtime.database)


async def test_termination_event_of_a_suspended_session_has_its_from_state(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    runtime.database.execute("update agent_sessions set status = 'suspended' where id = ?", root.id)
    assert (await runtime.terminate(root)).stopped == 1
    [event] = await termination_events(runtime)
    assert event.from_state == "suspended"


async def test_update_is_skipped_if_the_status_changed_since_the_read(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    for status, changed in (("suspended", 0), ("terminated", 0), ("active", 1), ("active", 0)):
        statement = Q.sessions_end(batch=[(ZONE, root.id, status, "x", 7)], now=7)
        [rows] = await runtime.store.transact(read_statement(statement), zones=[ZONE])
        assert len(rows) == changed


async def test_terminated_subtree_keeps_ttl_expired_for_expired_sessions(runtime: RuntimeHarness) -> None:
    root, left, right = await runtime.spawn_tree(2)
    runtime.database.expire_sessions(left)
    await runtime.terminate(root, "requested")
    reasons = {session.id: (await runtime.read_session(session)).termination_reason for session in (root, left, right)}
    assert reasons == {root.id: "requested", left.id: "ttl_expired", right.id: "requested"}


async def test_reason_is_stored_unchanged(runtime: RuntimeHarness) -> None:
    reason = 'it\'s "done"; -- ü 🜁 \\ \t :reason $1 ?'
    root = await runtime.spawn()
    await runtime.terminate(root, reason)
    assert (await runtime.read_session(root)).termination_reason == reason


# -- refusals


async def test_unknown_and_foreign_sessions_are_not_found(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign = await runtime.spawn("other")
    for session_id in ("unknown-session", foreign.id):
        with pytest.raises(NotFound) as error:
            await runtime.terminate_lane.submit(Terminate(ZONE, session_id, "x", admin()))
        assert error.value.code == "agent_not_found"
    with pytest.raises(NotFound) as error:
        await runtime.terminate_lane.submit(Terminate("unknown-zone", foreign.id, "x", admin()))
    assert error.value.code == "zone_not_found"
    assert (await runtime.read_session(foreign)).status is State.ACTIVE


@pytest.mark.parametrize(
    ("subject_caller", "is_allowed"),
    [
        (caller("app"), True),
        (caller("other", "coordinator.spawn_for:app"), True),
        (admin(), True),
        (caller("other"), False),
        (caller("other", "coordinator.spawn_for:another"), False),
    ],
)
async def test_termination_needs_permission_for_the_application(
    runtime: RuntimeHarness, subject_caller: Caller, is_allowed: bool
) -> None:
    root = await runtime.spawn()
    termination = runtime.terminate_lane.submit(Terminate(ZONE, root.id, "x", subject_caller))
    if is_allowed:
        assert (await termination).stopped == 1
    else:
        with pytest.raises(Forbidden) as error:
            await termination
        assert error.value.code == "application_ownership_required"
        assert (await runtime.read_session(root)).status is State.ACTIVE


async def test_token_of_an_ended_session_cannot_terminate(runtime: RuntimeHarness) -> None:
    bearer, target = await runtime.spawn(), await runtime.spawn()
    await runtime.terminate(bearer)
    with pytest.raises(Problem) as error:
        await runtime.terminate_lane.submit(Terminate(ZONE, target.id, "x", caller(session_id=bearer.id)))
    assert error.value.code == "session_ended"
    assert (await runtime.read_session(target)).status is State.ACTIVE


async def test_session_can_terminate_itself(runtime: RuntimeHarness) -> None:
    session = await runtime.spawn()
    receipt = await runtime.terminate_lane.submit(Terminate(ZONE, session.id, "done", caller(session_id=session.id)))
    assert receipt.stopped == 1


async def test_refusals_and_terminations_in_one_batch_are_independent(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    session, foreign = await runtime.spawn(), await runtime.spawn("other")
    commands = [
        Terminate(ZONE, "unknown-session", "x", admin()),
        Terminate(ZONE, session.id, "x", admin()),
        Terminate("unknown-zone", session.id, "x", admin()),
        Terminate("other", foreign.id, "x", caller("other-app")),
        Terminate("other", foreign.id, "x", admin("other")),
    ]
    results = await asyncio.gather(
        *(runtime.terminate_lane.submit(command) for command in commands), return_exceptions=True
    )
    assert result_names(results) == [
        "agent_not_found",
        "TerminateResult",
        "zone_not_found",
        "application_ownership_required",
        "TerminateResult",
    ]
    assert_counts_match_rows(runtime.database)


# -- concurrent spawns


async def test_concurrent_spawns_leave_no_live_session_in_a_terminated_subtree(runtime: RuntimeHarness) -> None:
    for _ in range(ROUNDS):
        root, *children = await runtime.spawn_tree(3)
        spawns = [
            runtime.spawn_lane.submit(spawn_command(parent_id=child.id)) for child, _ in product(children, range(5))
        ]
        termination = runtime.terminate_lane.submit(Terminate(ZONE, root.id, "x", admin()))
        results = await asyncio.gather(*spawns, return_exceptions=True)
        await termination
        assert set(result_names(results)) <= {"Spawned", "parent_not_found"}
        live_count = runtime.database.count("agent_sessions", "root_id = ? and status <> 'terminated'", root.id)
        assert live_count == 0
    assert_counts_match_rows(runtime.database)


async def test_tree_of_601_sessions_ends_in_one_transaction(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await asyncio.gather(*(runtime.spawn_lane.submit(spawn_command(parent_id=root.id)) for _ in range(600)))
    receipt = await runtime.terminate(root)
    assert receipt.stopped == 601
    ended = await termination_events(runtime)
    assert [event.pos for event in ended] == list(range(ended[0].pos, ended[0].pos + 601))
    assert ended[-1].subject == root.id
    assert_counts_match_rows(runtime.database)
