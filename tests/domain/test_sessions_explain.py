"""Explanations on both engines: sessions in every state, and spawns compared with real spawns."""

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
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as runtime:
        await runtime.put_zone()
        yield runtime


# -- sessions


async def test_active_session_is_explained_with_the_result_of_a_spawn_below_it(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    explanation = await runtime.explain(child)
    assert explanation.session.id == child.id
    assert explanation.why[0].startswith("It is active")
    assert iso(child.expires_at) in explanation.why[1]
    assert (explanation.held_by, explanation.ended_by) == ([], None)
    assert (explanation.spawn.parent_id, explanation.spawn.application_id, explanation.spawn.admitted) == (
        child.id,
        APP,
        True,
    )
    assert root.id not in " ".join(explanation.why)


async def test_suspended_session_names_the_sessions_that_suspend_it_nearest_first(runtime: RuntimeHarness) -> None:
    root, child, grandchild = await runtime.spawn_tree(1, 1)
    await runtime.suspend(root)
    assert (await runtime.explain(grandchild)).held_by == [root.id]
    await runtime.suspend(grandchild)
    explanation = await runtime.explain(grandchild)
    assert explanation.held_by == [grandchild.id, root.id]
    assert explanation.session.status == "suspended"
    assert "its own flag" in explanation.why[0]
    assert root.id in explanation.why[1]
    assert f"resume {grandchild.id} and {root.id}" in explanation.why[2]
    assert [refusal.error for refusal in explanation.spawn.refused_by] == ["parent_not_found"]
    for session_id in explanation.held_by:
        await runtime.resume(grandchild if session_id == grandchild.id else root)
    assert (await runtime.explain(grandchild)).why[0].startswith("It is active"), (
        "resuming the named sessions resumes it"
    )
    assert (await runtime.explain(child)).held_by == []


async def test_expired_session_is_explained_before_and_after_the_sweep(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await runtime.suspend(root)
    runtime.database.expire_sessions(root)
    explanation = await runtime.explain(root)
    assert (explanation.session.status, explanation.held_by, explanation.ended_by) == ("terminated", [], None)
    assert "It expired" in explanation.why[0]
    assert "next sweep" in explanation.why[0]
    await runtime.run_sweep()
    explanation = await runtime.explain(root)
    assert explanation.why == [f"It expired at {explanation.session.expires_at}."]
    assert explanation.ended_by
    assert (explanation.ended_by["actor"], explanation.ended_by["reason"]) == ("sweep", "ttl_expired")


async def test_marked_session_is_explained_with_the_progress_of_its_cascade(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(4)
    await runtime.suspend(tree[0])
    result = await runtime.terminate_lane.submit(Terminate(ZONE, tree[0].id, "no money", admin()))
    assert result.cascade_id
    await runtime.finish_cascade_lane.submit(FinishCascade(ZONE, result.cascade_id))
    explanation = await runtime.explain(tree[0])
    assert (explanation.session.status, explanation.held_by) == ("terminated", [])
    assert "no money" in explanation.why[0]
    assert f"{result.cascade_id} has terminated 2 of 5" in explanation.why[1]
    assert not explanation.spawn.admitted


async def test_terminated_session_is_explained_by_its_event(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(4)
    await runtime.cascade_runner.terminate(Terminate(ZONE, tree[0].id, "no money", caller(APP), "00-ab-cd-01"))
    explanation = await runtime.explain(tree[1])
    [event] = [e for e in await runtime.read_log() if e.subject == tree[1].id and e.type == "session.terminate"]
    assert explanation.why == [f"It was terminated at {explanation.session.terminated_at}: no money."]
    assert explanation.ended_by == {
        "reason": "no money",
        "cause": tree[0].id,
        "session_sid": "sid",
        "root_id": tree[0].id,
        "sid_in_use": False,
        "actor": "tester",
        "at": iso(event.at),
        "pos": event.pos,
        "trace": "00-ab-cd-01",
    }


async def test_session_that_ended_with_its_zone_names_the_zone_as_cause(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await runtime.cascade_runner.stop_zone(StopZone(ZONE, "closed", admin(), ends_zone=True))
    explanation = await runtime.explain(root)
    assert explanation.ended_by
    assert (explanation.ended_by["cause"], explanation.ended_by["reason"]) == (ZONE, "closed")
    assert [refusal.error for refusal in explanation.spawn.refused_by] == ["zone_not_found"]


async def test_explanations_are_refused_to_callers_who_cannot_read_the_session(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign, bearer, root = await runtime.spawn("other"), await runtime.spawn(), await runtime.spawn()
    await runtime.terminate(bearer)
    for ref, error in (
        (SessionRef(ZONE, "unknown-session"), NotFound),
        (SessionRef(ZONE, foreign.id), NotFound),
        (SessionRef(ZONE, root.id, Bearer(ZONE, bearer.id)), Unauthenticated),
    ):
        with pytest.raises(error):
            await runtime.engine.read(partial(runtime.explainer.explain_session, ref=ref, caller=admin()), zones=[ZONE])
    with pytest.raises(Unauthenticated):
        await runtime.explain_spawn(spawn_command(caller=caller(session_id=bearer.id)))
    with pytest.raises(NotFound):
        await runtime.explain_spawn(spawn_command("unknown-zone"))


async def test_explaining_changes_nothing(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    log, row = await runtime.read_log(), await runtime.read_session(root)
    await asyncio.gather(
        *(runtime.explain(root) for _ in range(5)), *(runtime.explain_spawn(spawn_command()) for _ in range(5))
    )
    assert (await runtime.read_log(), await runtime.read_session(root)) == (log, row)


# -- spawns


@dataclass(frozen=True)
class Scenario:
    """A zone, the actions that ran in it, and spawns that are submitted one after the other."""

    shape: list[int | None]
    actions: list[tuple[str, int]]
    limits: dict[str, int]
    zone_state: str | None
    spawns: list[tuple[int | None, str]]

    async def build(self, runtime: RuntimeHarness) -> list[Spawn]:
        zone_id = f"scenario-{next(_numbers)}"
        await runtime.put_zone(zone_id)
        sessions: list[Session] = []
        for index, parent in enumerate(self.shape):
            parent_id = None if parent is None else sessions[parent].id
            sessions.append(await runtime.spawn(zone_id, parent_id=parent_id, application_id=APPS[index % 2]))
        for action, index in self.actions:
            await run_action(runtime, action, sessions[index % len(sessions)])
        await runtime.put_zone(zone_id, **{name: min(limit, CEILINGS[name]) for name, limit in self.limits.items()})
        if self.zone_state == "frozen":
            await runtime.freeze_zone(zone_id)
        elif self.zone_state == "ended":
            await runtime.stop_zone(zone_id, ends=True)
        ids = [row.id for row in sessions]
        return [
            spawn_command(zone_id, parent_id=None if index is None else ids[index % len(ids)], application_id=app)
            for index, app in self.spawns
        ]


async def run_action(runtime: RuntimeHarness, action: str, session: Session) -> None:
    if action == "end":
        await runtime.terminate(session)
    elif action == "mark":
        await runtime.terminate_lane.submit(Terminate(session.zone_id, session.id, "x", admin(session.zone_id)))
    elif action == "expire":
        runtime.database.expire_sessions(*await runtime.read_subtree(session))
    elif (await runtime.read_session(session)).status is not State.TERMINATED:
        await runtime.suspend(session)


LIMITS = st.sampled_from([0, 1, 2, 3, 5, 8, 1_000, 1_000, 1_000])
SCENARIOS = st.builds(
    Scenario,
    shape=shapes(8),
    actions=st.lists(st.tuples(st.sampled_from(["end", "suspend", "expire", "mark"]), st.integers(0, 9)), max_size=3),
    limits=st.fixed_dictionaries(dict.fromkeys(CEILINGS, LIMITS)),
    zone_state=st.sampled_from([None, None, None, None, "frozen", "ended"]),
    spawns=st.lists(st.tuples(st.sampled_from([None, *range(8)]), st.sampled_from(APPS)), min_size=2, max_size=5),
)


@DATABASE_EXAMPLES
@given(scenario=SCENARIOS)
async def test_explained_spawn_agrees_with_the_real_spawn(runtime: RuntimeHarness, scenario: Scenario) -> None:
    for command in await scenario.build(runtime):
        explanation = await runtime.explain_spawn(command)
        [result] = await asyncio.gather(runtime.spawn_lane.submit(command), return_exceptions=True)
        assert explanation.admitted == (not explanation.refused_by) == isinstance(result, Spawned), result
        if isinstance(result, Problem):
            first = explanation.refused_by[0]
            assert (first.error, first.detail) == (result.code, result.detail)
            assert (first.bound, first.limit, first.used) == tuple(
                result.members.get(name) for name in ("bound", "limit", "used")
            )
        for use in explanation.bounds:
            assert use.left == max(0, use.limit - use.used)
            assert (use.left == 0) == any(refusal.bound == use.bound for refusal in explanation.refused_by)


async def test_terminating_a_session_frees_the_explained_bounds(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    await runtime.put_zone(max_sessions=2, max_children=1)
    explanation = await runtime.explain_spawn(spawn_command(parent_id=root.id))
    assert [refusal.bound for refusal in explanation.refused_by] == ["max_sessions", "max_children"]
    assert all(refusal.frees and "ends" in refusal.frees for refusal in explanation.refused_by)
    await runtime.terminate(child)
    assert (await runtime.explain_spawn(spawn_command(parent_id=root.id))).admitted


async def test_explained_spawn_checks_the_ownership_of_the_caller(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    explanation = await runtime.explain_spawn(spawn_command(caller=caller("other-app"), parent_id=root.id))
    assert [refusal.error for refusal in explanation.refused_by] == [
        "application_ownership_required",
        "parent_ownership_required",
    ]
