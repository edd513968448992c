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
from tests.support.builders import APP, ZONE, admin, caller, spawn_command
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime
from tests.support.session_trees import DATABASE_EXAMPLES, shapes

APPS = (APP, "another")
_numbers = count()


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as laid:
        await laid.put_zone()
        yield laid


# -- why a session is as it is


async def test_an_active_session_is_said_to_be_active_and_what_a_spawn_under_it_would_meet(
    runtime: RuntimeHarness,
) -> None:
    root, child = await runtime.spawn_tree(1)
    told = await runtime.explain(child)
    assert told.session.id == child.id
    assert told.why[0].startswith("It is active")
    assert iso(child.expires_at) in told.why[1]
    assert (told.held_by, told.ended_by) == ([], None)
    assert (told.spawn.parent_id, told.spawn.application_id, told.spawn.admitted) == (child.id, APP, True)
    assert root.id not in " ".join(told.why)


async def test_a_suspended_session_names_whoever_holds_it_nearest_first(runtime: RuntimeHarness) -> None:
    root, child, grandchild = await runtime.spawn_tree(1, 1)
    await runtime.suspend(root)
    assert (await runtime.explain(grandchild)).held_by == [root.id]
    await runtime.suspend(grandchild)
    told = await runtime.explain(grandchild)
    assert told.held_by == [grandchild.id, root.id]
    assert told.session.status == "suspended"
    assert "of its own" in told.why[0]
    assert root.id in told.why[1]
    assert f"Resume {grandchild.id} and {root.id}" in told.why[2]
    assert [why.error for why in told.spawn.refused_by] == ["parent_not_found"]
    for row in told.held_by:
        await runtime.resume(grandchild if row == grandchild.id else root)
    assert (await runtime.explain(grandchild)).why[0].startswith("It is active"), "what it says frees it, frees it"
    assert (await runtime.explain(child)).held_by == []


async def test_an_expired_session_is_said_to_have_run_out_and_after_the_sweep_by_whom_it_was_written(
    runtime: RuntimeHarness,
) -> None:
    root = await runtime.spawn()
    await runtime.suspend(root)
    runtime.database.expire_sessions(root)
    told = await runtime.explain(root)
    assert (told.session.status, told.held_by, told.ended_by) == ("terminated", [], None)
    assert "Its time ran out" in told.why[0]
    assert "next sweep" in told.why[0]
    await runtime.run_sweep()
    told = await runtime.explain(root)
    assert told.why == [f"Its time ran out at {told.session.expires_at}."]
    assert told.ended_by
    assert (told.ended_by["actor"], told.ended_by["reason"]) == ("sweep", "ttl_expired")


async def test_a_stamped_session_is_said_to_have_ended_and_how_far_its_cascade_has_come(
    runtime: RuntimeHarness,
) -> None:
    made = await runtime.spawn_tree(4)
    await runtime.suspend(made[0])
    ended = await runtime.terminate_lane.submit(Terminate(ZONE, made[0].id, "no money", admin()))
    assert ended.cascade_id
    await runtime.finish_cascade_lane.submit(FinishCascade(ZONE, ended.cascade_id))
    told = await runtime.explain(made[0])
    assert (told.session.status, told.held_by) == ("terminated", [])
    assert "no money" in told.why[0]
    assert f"{ended.cascade_id} has settled 2 of 5" in told.why[1]
    assert not told.spawn.admitted


async def test_an_ended_session_says_who_ended_it_with_what_and_where_the_log_has_it(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(4)
    await runtime.cascade_runner.terminate(Terminate(ZONE, made[0].id, "no money", caller(APP), "00-ab-cd-01"))
    told = await runtime.explain(made[1])
    [event] = [e for e in await runtime.read_log() if e.subject == made[1].id and e.type == "session.terminate"]
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


async def test_one_that_ended_with_its_zone_says_so(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await runtime.cascade_runner.stop_zone(StopZone(ZONE, "over", admin(), ends_zone=True))
    told = await runtime.explain(root)
    assert told.ended_by
    assert (told.ended_by["cause"], told.ended_by["reason"]) == (ZONE, "over")
    assert [why.error for why in told.spawn.refused_by] == ["zone_not_found"]


async def test_whoever_may_not_look_is_not_told_why(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign, bearer, root = await runtime.spawn("other"), await runtime.spawn(), await runtime.spawn()
    await runtime.terminate(bearer)
    for ref, kind in (
        (SessionRef(ZONE, "nobody"), NotFound),
        (SessionRef(ZONE, foreign.id), NotFound),
        (SessionRef(ZONE, root.id, Bearer(ZONE, bearer.id)), Unauthenticated),
    ):
        with pytest.raises(kind):
            await runtime.engine.read(partial(runtime.explainer.explain_session, ref=ref, caller=admin()), zones=[ZONE])
    with pytest.raises(Unauthenticated):
        await runtime.explain_spawn(spawn_command(caller=caller(session_id=bearer.id)))
    with pytest.raises(NotFound):
        await runtime.explain_spawn(spawn_command("nowhere"))


async def test_looking_changes_nothing(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    log, row = await runtime.read_log(), await runtime.read_session(root)
    await asyncio.gather(
        *(runtime.explain(root) for _ in range(5)), *(runtime.explain_spawn(spawn_command()) for _ in range(5))
    )
    assert (await runtime.read_log(), await runtime.read_session(root)) == (log, row)


# -- what a spawn would meet


@dataclass(frozen=True)
class Scene:
    """A zone, what has happened in it, and spawns that are asked for one after the other."""

    shape: list[int | None]
    deeds: list[tuple[str, int]]
    limits: dict[str, int]
    closed: str | None
    asks: list[tuple[int | None, str]]

    async def play(self, keel: RuntimeHarness) -> list[Spawn]:
        zone_id = f"scene-{next(_numbers)}"
        await keel.put_zone(zone_id)
        made: list[Session] = []
        for place, parent in enumerate(self.shape):
            parent_id = None if parent is None else made[parent].id
            made.append(await keel.spawn(zone_id, parent_id=parent_id, application_id=APPS[place % 2]))
        for deed, which in self.deeds:
            await do(keel, deed, made[which % len(made)])
        await keel.put_zone(zone_id, **{name: min(limit, CEILINGS[name]) for name, limit in self.limits.items()})
        if self.closed == "frozen":
            await keel.freeze_zone(zone_id)
        elif self.closed == "ended":
            await keel.stop_zone(zone_id, ends=True)
        ids = [row.id for row in made]
        return [
            spawn_command(zone_id, parent_id=None if which is None else ids[which % len(ids)], application_id=app)
            for which, app in self.asks
        ]


async def do(keel: RuntimeHarness, deed: str, session: Session) -> None:
    if deed == "end":
        await keel.terminate(session)
    elif deed == "stamp":
        await keel.terminate_lane.submit(Terminate(session.zone_id, session.id, "x", admin(session.zone_id)))
    elif deed == "expire":
        keel.database.expire_sessions(*await keel.read_subtree(session))
    elif (await keel.read_session(session)).status is not State.TERMINATED:
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


@DATABASE_EXAMPLES
@given(scene=SCENES)
async def test_a_spawn_is_admitted_if_and_only_if_that_was_said_and_refused_by_what_was_said_first(
    runtime: RuntimeHarness, scene: Scene
) -> None:
    for asked in await scene.play(runtime):
        told = await runtime.explain_spawn(asked)
        [outcome] = await asyncio.gather(runtime.spawn_lane.submit(asked), return_exceptions=True)
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


async def test_what_is_said_to_free_a_bound_frees_it(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    await runtime.put_zone(max_sessions=2, max_children=1)
    told = await runtime.explain_spawn(spawn_command(parent_id=root.id))
    assert [why.bound for why in told.refused_by] == ["max_sessions", "max_children"]
    assert all(why.frees and "ends" in why.frees for why in told.refused_by)
    await runtime.terminate(child)
    assert (await runtime.explain_spawn(spawn_command(parent_id=root.id))).admitted


async def test_a_spawn_that_the_caller_may_not_ask_for_is_not_said_to_be_admitted(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    told = await runtime.explain_spawn(spawn_command(caller=caller("stranger"), parent_id=root.id))
    assert [why.error for why in told.refused_by] == ["application_ownership_required", "parent_ownership_required"]
