"""Looking: one, many by page and filter, and whole subtrees."""

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


async def test_many_callers_who_look_at_once_each_get_their_own(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(5)
    refs = [SessionRef(ZONE, row.id) for row in made] + [SessionRef(ZONE, "nobody"), SessionRef("other", made[0].id)]
    outcomes = await asyncio.gather(*(runtime.show_session_lane.submit(ref) for ref in refs), return_exceptions=True)
    assert outcomes[:6] == made
    assert result_names(outcomes[6:]) == ["agent_not_found", "agent_not_found"]


async def test_pages_are_newest_first_and_go_on_where_the_last_one_stopped(runtime: RuntimeHarness) -> None:
    made = [await runtime.spawn() for _ in range(7)]
    newest = ids(made)[::-1]
    assert ids(await runtime.list_sessions()) == newest
    seen: list[str] = []
    before: str | None = None
    while page := await runtime.list_sessions(limit=3, before=before):
        seen += ids(page)
        before = page[-1].id
    assert seen == newest


async def test_a_page_goes_on_though_the_row_it_stopped_at_is_gone(runtime: RuntimeHarness) -> None:
    made = [await runtime.spawn() for _ in range(4)]
    first = await runtime.list_sessions(limit=2)
    runtime.database.execute("delete from agent_sessions where id = ?", first[-1].id)
    assert ids(await runtime.list_sessions(before=first[-1].id)) == ids(made[:2])[::-1]


async def test_filters_narrow_alone_and_together(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    await runtime.spawn("other")
    roots = [await runtime.spawn(application_id=app) for app in ("a", "b")]
    rows = list(roots)
    for root, own in product(roots, ("a", "b")):
        rows.append(await runtime.spawn(parent_id=root.id, application_id=own))
    await runtime.terminate(rows[2])
    rows = [await runtime.read_session(row) for row in rows]
    statuses = (None, State.ACTIVE, State.TERMINATED, State.SUSPENDED)
    parents = (None, roots[0].id, roots[1].id)
    for status, app, parent, tree in product(statuses, (None, "a", "b", "c"), parents, parents):
        wanted = [
            row
            for row in rows[::-1]
            if (status is None or row.status is status)
            and (app is None or row.application_id == app)
            and (parent is None or row.parent_id == parent)
            and (tree is None or row.root_id == tree)
        ]
        wanted.sort(key=lambda row: row.id, reverse=True)
        assert await runtime.list_sessions(status=status, application_id=app, parent_id=parent, root_id=tree) == wanted


async def test_a_subtree_is_whole_with_parents_before_their_children(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 2, 1)
    await runtime.spawn()
    found = await runtime.read_subtree(made[0])
    assert sorted(ids(found)) == sorted(ids(made))
    place = {row.id: number for number, row in enumerate(found)}
    assert all(place[row.parent_id] < place[row.id] for row in found if row.parent_id is not None)
    below = await runtime.read_subtree(made[1])
    assert below[0] == made[1]
    assert len(below) == 5


async def test_a_subtree_of_nobody_or_of_another_zone_is_not_found(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign = await runtime.spawn("other")
    for own in ("nobody", foreign.id):
        with pytest.raises(NotFound):
            await runtime.read_subtree_by_ref(SessionRef(ZONE, own))


async def test_even_a_cycle_in_the_rows_has_an_end(runtime: RuntimeHarness) -> None:
    # No operation makes one; a restored backup or a hand in the database might.
    root, child = await runtime.spawn_tree(1)
    runtime.database.execute("update agent_sessions set parent_id = ? where id = ?", child.id, root.id)
    assert sorted(ids(await runtime.read_subtree(root))) == sorted([root.id, child.id])


async def test_a_token_of_an_ended_session_sees_nothing(runtime: RuntimeHarness) -> None:
    bearer, other = await runtime.spawn(), await runtime.spawn()
    spoken = Bearer(ZONE, bearer.id)
    assert await runtime.show_session_lane.submit(SessionRef(ZONE, other.id, spoken)) == other
    assert await runtime.list_sessions(bearer=spoken)
    await runtime.terminate(bearer)
    ref = SessionRef(ZONE, other.id, spoken)
    with pytest.raises(Unauthenticated):
        await runtime.show_session_lane.submit(ref)
    with pytest.raises(Unauthenticated):
        await runtime.list_sessions(bearer=spoken)
    with pytest.raises(Unauthenticated):
        await runtime.read_subtree(other, spoken)
