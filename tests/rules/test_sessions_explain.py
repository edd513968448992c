"""Explanations of a session's state, and of a spawn as admission would decide it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import DAY, MINUTE, SECOND, iso
from quarterdeck.core.errors import LimitReached, Problem
from quarterdeck.domain.sessions.model import Session, Spawned, State, TreeNode
from quarterdeck.domain.sessions.rules import BOUNDS
from quarterdeck.domain.sessions.rules.admission import Count, SpawnBatchInput, admit
from quarterdeck.domain.sessions.rules.explain import explain_spawn, explain_state, suspended_by
from quarterdeck.domain.zones.model import Limits, ZoneAdmissionState
from tests.support.builders import APP, MAX_LIMITS, NOW, ZONE, admin, caller, session_row, spawn_command, spawn_input
from tests.support.session_trees import cascade_row, tree_node

ROOT = session_row(id="root")


def with_limits(**limits: int) -> Limits:
    return msgspec.structs.replace(MAX_LIMITS, **limits)


# -- spawn

SMALL = st.integers(0, 4)
BATCH_INPUTS = st.builds(
    SpawnBatchInput,
    now=st.just(NOW),
    zones=st.builds(
        lambda limits, frozen, ended: {ZONE: ZoneAdmissionState(limits, frozen, ended)},
        st.builds(Limits, **dict.fromkeys(Limits.__struct_fields__, SMALL)),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([False, False, False, True]),
    ),
    sessions=st.builds(
        lambda **stored: {(ZONE, "p"): session_row(id="p", root_id="r", **stored)},
        application_id=st.sampled_from([APP, "other"]),
        depth=SMALL,
        status=st.sampled_from(list(State)),
        expires_at=st.sampled_from([NOW, NOW + 1]),
        terminated_at=st.sampled_from([None, NOW - 1]),
    ),
    counts=st.dictionaries(
        st.sampled_from(
            [(ZONE, "zone", ""), (ZONE, "application", APP), (ZONE, "concurrent", ""), (ZONE, "parent", "p"),
             (ZONE, "tree", "r")]
        ),
        st.builds(Count, live=SMALL, ever=SMALL),
    ),
)  # fmt: skip
CALLERS = st.sampled_from(
    [caller(APP), admin(), caller("other"), caller("other", f"coordinator.spawn_for:{APP}"),
     caller(APP, "coordinator.spawn_under:other")]
)  # fmt: skip


@settings(max_examples=500)
@given(BATCH_INPUTS, CALLERS, st.sampled_from([None, "p", "unknown"]))
def test_explanation_agrees_with_admission(loaded: SpawnBatchInput, as_caller: Caller, parent_id: str | None) -> None:
    command = spawn_command(caller=as_caller, parent_id=parent_id)
    [outcome] = admit([command], loaded)
    explained = explain_spawn(command, loaded)
    if not as_caller.can_act_for(APP, "spawn_for"):
        # The route checks ownership before admission runs.
        assert explained.refused_by[0].error == "application_ownership_required"
    elif isinstance(outcome, Spawned):
        assert (explained.admitted, explained.refused_by) == (True, [])
    else:
        first = explained.refused_by[0]
        assert (first.error, first.detail) == (outcome.code, outcome.detail)
        members = {name: outcome.members.get(name) for name in ("bound", "limit", "used", "frees")}
        assert members == {name: getattr(first, name) for name in members}
    assert explained.admitted == (not explained.refused_by)


@settings(max_examples=200)
@given(BATCH_INPUTS, st.sampled_from([None, "p"]))
def test_explanation_names_exactly_the_reached_bounds(loaded: SpawnBatchInput, parent_id: str | None) -> None:
    explained = explain_spawn(spawn_command(parent_id=parent_id), loaded)
    full = [use.bound for use in explained.bounds if use.used >= use.limit]
    assert [refusal.bound for refusal in explained.refused_by if refusal.bound] == full
    assert [use.left for use in explained.bounds] == [max(0, use.limit - use.used) for use in explained.bounds]
    parent = session_row(id="p", root_id="r", depth=loaded.sessions[ZONE, "p"].depth)
    for use in explained.bounds:
        only_this_bound = spawn_input(parent, limits=with_limits(**{use.bound: use.limit}), counts=loaded.counts)
        [outcome] = admit([spawn_command(parent_id=parent_id)], only_this_bound)
        assert isinstance(outcome, LimitReached) == (use.bound in full), "each bound refuses on its own"


@pytest.mark.parametrize("parent_id", [None, "root"])
def test_bounds_are_listed_in_check_order_with_counts_and_frees(parent_id: str | None) -> None:
    only_children = {"max_children", "max_depth", "max_concurrent"}
    explained = explain_spawn(spawn_command(parent_id=parent_id), spawn_input(ROOT))
    assert [use.bound for use in explained.bounds] == [
        bound.name for bound in BOUNDS if parent_id or bound.name not in only_children
    ]
    assert all(use.counts and use.frees for use in explained.bounds)


def test_frozen_zone_is_named_before_the_reached_bounds() -> None:
    loaded = spawn_input(ROOT, limits=with_limits(max_sessions=0, max_children=0), frozen=True)
    explained = explain_spawn(spawn_command(parent_id="root"), loaded)
    assert [refusal.error for refusal in explained.refused_by] == [
        "zone_frozen",
        "agent_zone_limit_exceeded",
        "agent_children_limit_exceeded",
    ]
    assert "thaws" in str(explained.refused_by[0].frees)


def test_refusal_by_a_suspended_parent_names_the_resume() -> None:
    suspended = session_row(id="p", status=State.SUSPENDED, held=1)
    [refusal] = explain_spawn(spawn_command(parent_id="p"), spawn_input(suspended)).refused_by
    assert refusal.error == "parent_not_found"
    assert "suspended" in refusal.detail
    assert "resumed" in str(refusal.frees)


def test_ended_zone_is_not_found_and_is_the_only_refusal() -> None:
    loaded = SpawnBatchInput(NOW, {ZONE: ZoneAdmissionState(MAX_LIMITS, frozen=True, ended=True)})
    [outcome] = admit([spawn_command()], loaded)
    assert isinstance(outcome, Problem)
    assert (outcome.status, outcome.code) == (404, "zone_not_found")
    assert [refusal.error for refusal in explain_spawn(spawn_command(), loaded).refused_by] == ["zone_not_found"]


# -- state


def build_lineage(*held: str) -> tuple[Session, list[TreeNode]]:
    """A grandchild and its lineage, nearest first. The sessions named in `held` have the suspend flag."""
    root = session_row(id="root")
    child = session_row(id="child", parent=root)
    session = session_row(id="own", parent=child, status=State.SUSPENDED if held else State.ACTIVE)
    return session, [tree_node(row, held=int(row.id in held)) for row in (session, child, root)]


def explain(session: Session, lineage: Sequence[TreeNode] = (), now: int = NOW) -> list[str]:
    return explain_state(session, lineage, None, now)


def test_active_session_is_explained_with_its_expiry() -> None:
    session, lineage = build_lineage()
    first, second = explain(session, lineage)
    assert first.startswith("It is active")
    assert iso(session.expires_at) in second
    assert suspended_by(session, lineage) == []


@pytest.mark.parametrize(
    "held", [("own",), ("child",), ("root",), ("own", "child"), ("child", "root"), ("own", "child", "root")]
)
def test_suspended_session_names_every_session_with_a_flag_nearest_first(held: tuple[str, ...]) -> None:
    session, lineage = build_lineage(*held)
    assert suspended_by(session, lineage) == list(held)
    sentences = explain(session, lineage)
    for sentence, name in zip(sentences, held, strict=False):
        assert ("its own flag" in sentence) == (name == "own")
        assert f"ancestor {name}." in sentence or name == "own"
    assert sentences[len(held)] == f"To resume it, resume {' and '.join(held)}."
    assert not any("active" in sentence for sentence in sentences)


def test_suspended_session_without_a_flag_is_explained_as_such() -> None:
    session, _ = build_lineage("own")
    [first, *_] = explain(session, [tree_node(session, held=0)])
    assert "suspended without a suspend flag" in first


@pytest.mark.parametrize("status", [State.ACTIVE, State.SUSPENDED])
def test_expired_session_is_explained_as_expired_before_any_sweep(status: State) -> None:
    session = session_row(expires_at=NOW - 90 * SECOND, status=status, held=int(status is State.SUSPENDED))
    [sentence] = explain(session, [tree_node(session)])
    assert f"It expired at {iso(NOW - 90 * SECOND)}, 90 s ago" in sentence
    assert "sweep" in sentence


def test_swept_session_is_explained_as_expired() -> None:
    session = session_row(status=State.TERMINATED, terminated_at=NOW - 7, termination_reason="ttl_expired")
    assert explain(session) == [f"It expired at {iso(NOW - 7)}."]


def test_terminated_session_is_explained_with_its_reason() -> None:
    session = session_row(status=State.TERMINATED, terminated_at=NOW - 7, termination_reason="budget exhausted")
    assert explain(session) == [f"It was terminated at {iso(NOW - 7)}: budget exhausted."]


@pytest.mark.parametrize("status", [State.ACTIVE, State.SUSPENDED])
def test_session_of_a_running_cascade_is_explained_with_the_cascade_progress(status: State) -> None:
    session = session_row(
        status=status,
        terminated_at=NOW - 7,
        termination_reason="x",
        cascade_id="c",
        held=int(status is State.SUSPENDED),
    )
    cascade = cascade_row("c", "root", stamped=9, settled=4)
    first, second = explain_state(session, [tree_node(session)], cascade, NOW)
    assert first == f"It was terminated at {iso(NOW - 7)}: x."
    assert "Cascade c has terminated 4 of 9" in second
    terminated = msgspec.structs.replace(session, status=State.TERMINATED)
    assert explain_state(terminated, [], cascade, NOW) == [first]


@pytest.mark.parametrize(
    ("ttl_ms", "text"),
    [(1, "0 s"), (119 * SECOND, "119 s"), (2 * MINUTE, "2 min"), (3 * 60 * MINUTE, "3 h"), (2 * DAY, "2 d")],
)
def test_durations_are_printed_in_a_readable_unit(ttl_ms: int, text: str) -> None:
    session = session_row(expires_at=NOW + ttl_ms)
    assert f"in {text}." in explain(session)[1]
