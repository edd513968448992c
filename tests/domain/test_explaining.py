"""Why, on both engines: what is said of sessions in every state, and of spawns against what spawns really meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from itertools import count

import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.caller import Bearer
from quarterdeck.core.clock import iso
from quarterdeck.core.errors import NotFound, Problem, Unauthenticated
from quarterdeck.domain.sessions.model import (
    FinishCascade,
    Session,
    SessionRef,
    Spawn,
    Spawned,
    State,
    StopZone,
    Terminate,
)
from quarterdeck.domain.zones.model import CEILINGS
from tests.support.asking import APP, ZONE, admin, ask, caller
from tests.support.keel import Keel, Rigging, keel_on
from tests.support.members import ON_A_DATABASE, shapes

APPS = (APP, "another")
_numbers = count()


@pytest.fixture
async def keel(engine_url: str) -> AsyncIterator[Keel]:
    async with keel_on(engine_url, Rigging(chunk=2)) as laid:
        await laid.zone()
        yield laid


# -- why a session is as it is


async def test_an_active_session_is_said_to_be_active_and_what_a_spawn_under_it_would_meet(keel: Keel) -> None:
    root, child = await keel.tree(1)
    told = await keel.explain(child)
    assert told.session.id == child.id
    assert told.why[0].startswith("It is active")
    assert iso(child.expires_at) in told.why[1]
    assert (told.held_by, told.ended_by) == ([], None)
    assert (told.spawn.parent_id, told.spawn.application_id, told.spawn.admitted) == (child.id, APP, True)
    assert root.id not in " ".join(told.why)


async def test_a_suspended_session_names_whoever_holds_it_nearest_first(keel: Keel) -> None:
    root, child, grandchild = await keel.tree(1, 1)
    await keel.suspend(root)
    assert (await keel.explain(grandchild)).held_by == [root.id]
    await keel.suspend(grandchild)
    told = await keel.explain(grandchild)
    assert told.held_by == [grandchild.id, root.id]
    assert told.session.status == "suspended"
    assert "of its own" in told.why[0]
    assert root.id in told.why[1]
    assert f"Resume {grandchild.id} and {root.id}" in told.why[2]
    assert [why.error for why in told.spawn.refused_by] == ["parent_not_found"]
    for row in told.held_by:
        await keel.resume(grandchild if row == grandchild.id else root)
    assert (await keel.explain(grandchild)).why[0].startswith("It is active"), "what it says frees it, frees it"
    assert (await keel.explain(child)).held_by == []


async def test_an_expired_session_is_said_to_have_run_out_and_after_the_sweep_by_whom_it_was_written(
    keel: Keel,
) -> None:
    root = await keel.spawn()
    await keel.suspend(root)
    keel.side.expire(root)
    told = await keel.explain(root)
    assert (told.session.status, told.held_by, told.ended_by) == ("terminated", [], None)
    assert "Its time ran out" in told.why[0]
    assert "next sweep" in told.why[0]
    await keel.sweep()
    told = await keel.explain(root)
    assert told.why == [f"Its time ran out at {told.session.expires_at}."]
    assert told.ended_by
    assert (told.ended_by["actor"], told.ended_by["reason"]) == ("sweep", "ttl_expired")


async def test_a_stamped_session_is_said_to_have_ended_and_how_far_its_cascade_has_come(keel: Keel) -> None:
    made = await keel.tree(4)
    await keel.suspend(made[0])
    ended = await keel.endings.submit(Terminate(ZONE, made[0].id, "no money", admin()))
    assert ended.cascade_id
    await keel.settles.submit(FinishCascade(ZONE, ended.cascade_id))
    told = await keel.explain(made[0])
    assert (told.session.status, told.held_by) == ("terminated", [])
    assert "no money" in told.why[0]
    assert f"{ended.cascade_id} has settled 2 of 5" in told.why[1]
    assert not told.spawn.admitted


async def test_an_ended_session_says_who_ended_it_with_what_and_where_the_log_has_it(keel: Keel) -> None:
    made = await keel.tree(4)
    await keel.finisher.terminate(Terminate(ZONE, made[0].id, "no money", caller(APP), "00-ab-cd-01"))
    told = await keel.explain(made[1])
    [event] = [e for e in await keel.log() if e.subject == made[1].id and e.type == "session.terminate"]
    assert told.why == [f"It was ended at {told.session.terminated_at}: no money."]
    assert told.ended_by == {
        "reason": "no money",
        "cause": made[0].id,
        "session_sid": "sid",
        "root_id": made[0].id,
        "sid_in_use": False,
        "actor": "tester",
        "at": iso(event.at),
        "pos": event.pos,
        "trace": "00-ab-cd-01",
    }


async def test_one_that_ended_with_its_zone_says_so(keel: Keel) -> None:
    root = await keel.spawn()
    await keel.finisher.stop_zone(StopZone(ZONE, "over", admin(), ends_zone=True))
    told = await keel.explain(root)
    assert told.ended_by
    assert (told.ended_by["cause"], told.ended_by["reason"]) == (ZONE, "over")
    assert [why.error for why in told.spawn.refused_by] == ["zone_not_found"]


async def test_whoever_may_not_look_is_not_told_why(keel: Keel) -> None:
    await keel.zone("other")
    foreign, bearer, root = await keel.spawn("other"), await keel.spawn(), await keel.spawn()
    await keel.end(bearer)
    for ref, kind in (
        (SessionRef(ZONE, "nobody"), NotFound),
        (SessionRef(ZONE, foreign.id), NotFound),
        (SessionRef(ZONE, root.id, Bearer(ZONE, bearer.id)), Unauthenticated),
    ):
        with pytest.raises(kind):
            await keel.engine.read(partial(keel.explainer.explain_session, ref=ref, caller=admin()), zones=[ZONE])
    with pytest.raises(Unauthenticated):
        await keel.explain_spawn(ask(caller=caller(session_id=bearer.id)))
    with pytest.raises(NotFound):
        await keel.explain_spawn(ask("nowhere"))


async def test_looking_changes_nothing(keel: Keel) -> None:
    root = await keel.spawn()
    log, row = await keel.log(), await keel.show(root)
    await asyncio.gather(*(keel.explain(root) for _ in range(5)), *(keel.explain_spawn(ask()) for _ in range(5)))
    assert (await keel.log(), await keel.show(root)) == (log, row)


# -- what a spawn would meet


@dataclass(frozen=True)
class Scene:
    """A zone, what has happened in it, and spawns that are asked for one after the other."""

    shape: list[int | None]
    deeds: list[tuple[str, int]]
    limits: dict[str, int]
    closed: str | None
    asks: list[tuple[int | None, str]]

    async def play(self, keel: Keel) -> list[Spawn]:
        zone_id = f"scene-{next(_numbers)}"
        await keel.zone(zone_id)
        made: list[Session] = []
        for place, parent in enumerate(self.shape):
            parent_id = None if parent is None else made[parent].id
            made.append(await keel.spawn(zone_id, parent_id=parent_id, application_id=APPS[place % 2]))
        for deed, which in self.deeds:
            await do(keel, deed, made[which % len(made)])
        await keel.zone(zone_id, **{name: min(limit, CEILINGS[name]) for name, limit in self.limits.items()})
        if self.closed == "frozen":
            await keel.freeze(zone_id)
        elif self.closed == "ended":
            await keel.stop(zone_id, ends=True)
        ids = [row.id for row in made]
        return [
            ask(zone_id, parent_id=None if which is None else ids[which % len(ids)], application_id=app)
            for which, app in self.asks
        ]


async def do(keel: Keel, deed: str, session: Session) -> None:
    if deed == "end":
        await keel.end(session)
    elif deed == "stamp":
        await keel.endings.submit(Terminate(session.zone_id, session.id, "x", admin(session.zone_id)))
    elif deed == "expire":
        keel.side.expire(*await keel.subtree(session))
    elif (await keel.show(session)).status is not State.TERMINATED:
        await keel.suspend(session)


FEW = st.sampled_from([0, 1, 2, 3, 5, 8, 1_000, 1_000, 1_000])
SCENES = st.builds(
    Scene,
    shape=shapes(8),
    deeds=st.lists(st.tuples(st.sampled_from(["end", "suspend", "expire", "stamp"]), st.integers(0, 9)), max_size=3),
    limits=st.fixed_dictionaries(dict.fromkeys(CEILINGS, FEW)),
    closed=st.sampled_from([None, None, None, None, "frozen", "ended"]),
    asks=st.lists(st.tuples(st.sampled_from([None, *range(8)]), st.sampled_from(APPS)), min_size=2, max_size=5),
)


@ON_A_DATABASE
@given(scene=SCENES)
async def test_a_spawn_is_admitted_if_and_only_if_that_was_said_and_refused_by_what_was_said_first(
    keel: Keel, scene: Scene
) -> None:
    for asked in await scene.play(keel):
        told = await keel.explain_spawn(asked)
        [outcome] = await asyncio.gather(keel.spawns.submit(asked), return_exceptions=True)
        assert told.admitted == (not told.refused_by) == isinstance(outcome, Spawned), outcome
        if isinstance(outcome, Problem):
            first = told.refused_by[0]
            assert (first.error, first.detail) == (outcome.code, outcome.detail)
            assert (first.bound, first.limit, first.used) == tuple(
                outcome.members.get(name) for name in ("bound", "limit", "used")
            )
        for use in told.bounds:
            assert use.left == max(0, use.limit - use.used)
            assert (use.left == 0) == any(why.bound == use.bound for why in told.refused_by)


async def test_what_is_said_to_free_a_bound_frees_it(keel: Keel) -> None:
    root, child = await keel.tree(1)
    await keel.zone(max_sessions=2, max_children=1)
    told = await keel.explain_spawn(ask(parent_id=root.id))
    assert [why.bound for why in told.refused_by] == ["max_sessions", "max_children"]
    assert all(why.frees and "ends" in why.frees for why in told.refused_by)
    await keel.end(child)
    assert (await keel.explain_spawn(ask(parent_id=root.id))).admitted


async def test_a_spawn_that_the_caller_may_not_ask_for_is_not_said_to_be_admitted(keel: Keel) -> None:
    root = await keel.spawn()
    told = await keel.explain_spawn(ask(caller=caller("stranger"), parent_id=root.id))
    assert [why.error for why in told.refused_by] == ["application_ownership_required", "parent_ownership_required"]
