"""Reads of sessions: single sessions, filtered pages, and subtrees."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from quarterdeck.core.caller import Bearer
from quarterdeck.core.errors import NotFound, Unauthenticated
from quarterdeck.domain.sessions.model import Session, SessionRef, State
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness, result_names


def ids(sessions: list[Session]) -> list[str]:
    return [session.id for session in sessions]


async def test_concurrent_reads_return_the_requested_sessions(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(5)
    refs = [SessionRef(ZONE, row.id) for row in tree] + [
        SessionRef(ZONE, "unknown-session"),
        SessionRef("other", tree[0].id),
    ]
    results = await asyncio.gather(*(runtime.show_session_lane.submit(ref) for ref in refs), return_exceptions=True)
    assert results[:6] == tree
    assert result_names(results[6:]) == ["agent_not_found", "agent_not_found"]


async def test_pages_are_newest_first_and_continue_after_the_last_row(runtime: RuntimeHarness) -> None:
    sessions = [await runtime.spawn() for _ in range(7)]
    newest = ids(sessions)[::-1]
    assert ids(await runtime.list_sessions()) == newest
    seen: list[str] = []
    before: str | None = None
    while page := await runtime.list_sessions(limit=3, before=before):
        seen += ids(page)
        before = page[-1].id
    assert seen == newest


async def test_page_continues_after_a_deleted_row(runtime: RuntimeHarness) -> None:
    sessions = [await runtime.spawn() for _ in range(4)]
    first = await runtime.list_sessions(limit=2)
    runtime.database.execute("delete from agent_sessions where id = ?", first[-1].id)
    assert ids(await runtime.list_sessions(before=first[-1].id)) == ids(sessions[:2])[::-1]


async def test_filters_apply_alone_and_combined(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    await runtime.spawn("other")
    roots = [await runtime.spawn(application_id=app) for app in ("a", "b")]
    rows = list(roots)
    for root, child_app in product(roots, ("a", "b")):
        rows.append(await runtime.spawn(parent_id=root.id, application_id=child_app))
    await runtime.terminate(rows[2])
    rows = [await runtime.read_session(row) for row in rows]
    statuses = (None, State.ACTIVE, State.TERMINATED, State.SUSPENDED)
    parents = (None, roots[0].id, roots[1].id)
    for status, app, parent, tree in product(statuses, (None, "a", "b", "c"), parents, parents):
        expected = [
            row
            for row in rows[::-1]
            if (status is None or row.status is status)
            and (app is None or row.application_id == app)
            and (parent is None or row.parent_id == parent)
            and (tree is None or row.root_id == tree)
        ]
        expected.sort(key=lambda row: row.id, reverse=True)
        assert (
            await runtime.list_sessions(status=status, application_id=app, parent_id=parent, root_id=tree) == expected
        )


async def test_subtree_is_complete_with_parents_before_children(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2, 2, 1)
    await runtime.spawn()
    found = await runtime.read_subtree(tree[0])
    assert sorted(ids(found)) == sorted(ids(tree))
    position = {row.id: number for number, row in enumerate(found)}
    assert all(position[row.parent_id] < position[row.id] for row in found if row.parent_id is not None)
    below = await runtime.read_subtree(tree[1])
    assert below[0] == tree[1]
    assert len(below) == 5


async def test_subtree_of_an_unknown_or_foreign_session_is_not_found(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign = await runtime.spawn("other")
    for session_id in ("unknown-session", foreign.id):
        with pytest.raises(NotFound):
            await runtime.read_subtree_by_ref(SessionRef(ZONE, session_id))


async def test_subtree_read_terminates_on_a_cycle(runtime: RuntimeHarness) -> None:
    # No operation creates a cycle. A restored backup or a manual change in the database might.
    root, child = await runtime.spawn_tree(1)
    runtime.database.execute("update agent_sessions set parent_id = ? where id = ?", child.id, root.id)
    assert sorted(ids(await runtime.read_subtree(root))) == sorted([root.id, child.id])


async def test_token_of_an_ended_session_cannot_read(runtime: RuntimeHarness) -> None:
    bearer, other = await runtime.spawn(), await runtime.spawn()
    ref_bearer = Bearer(ZONE, bearer.id)
    assert await runtime.show_session_lane.submit(SessionRef(ZONE, other.id, ref_bearer)) == other
    assert await runtime.list_sessions(bearer=ref_bearer)
    await runtime.terminate(bearer)
    ref = SessionRef(ZONE, other.id, ref_bearer)
    with pytest.raises(Unauthenticated):
        await runtime.show_session_lane.submit(ref)
    with pytest.raises(Unauthenticated):
        await runtime.list_sessions(bearer=ref_bearer)
    with pytest.raises(Unauthenticated):
        await runtime.read_subtree(other, ref_bearer)
