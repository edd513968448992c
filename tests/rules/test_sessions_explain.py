"""Why: what is said of a session's state, and what is said of a spawn against what admission decides."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import DAY, MINUTE, SECOND, iso
from quarterdeck.core.errors import LimitReached, Problem
from quarterdeck.domain.sessions.model import Session, Spawned, State, TreeNode
from quarterdeck.domain.sessions.rules import BOUNDS, Count, SpawnBatchInput, admit
from quarterdeck.domain.sessions.rules.explain import explain_spawn, explain_state, suspended_by
from quarterdeck.domain.zones.model import Limits, ZoneAdmission
from tests.support.builders import APP, MAX_LIMITS, NOW, ZONE, admin, caller, session_row, spawn_command, spawn_input
from tests.support.session_trees import cascade_row, tree_node

ROOT = session_row(id="root")


def narrowed(**limits: int) -> Limits:
    return msgspec.structs.replace(MAX_LIMITS, **limits)


# -- what a spawn would meet

FEW = st.integers(0, 4)
FACTS = st.builds(
    SpawnBatchInput,
    now=st.just(NOW),
    zones=st.builds(
        lambda limits, frozen, ended: {ZONE: ZoneAdmission(limits, frozen, ended)},
        st.builds(Limits, **dict.fromkeys(Limits.__struct_fields__, FEW)),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([False, False, False, True]),
    ),
    sessions=st.builds(
        lambda **stored: {(ZONE, "p"): session_row(id="p", root_id="r", **stored)},
        application_id=st.sampled_from([APP, "other"]),
        depth=FEW,
        status=st.sampled_from(list(State)),
        expires_at=st.sampled_from([NOW, NOW + 1]),
        terminated_at=st.sampled_from([None, NOW - 1]),
    ),
    counts=st.dictionaries(
        st.sampled_from(
            [(ZONE, "zone", ""), (ZONE, "application", APP), (ZONE, "concurrent", ""), (ZONE, "parent", "p"),
             (ZONE, "tree", "r")]
        ),
        st.builds(Count, live=FEW, ever=FEW),
    ),
)  # fmt: skip
CALLERS = st.sampled_from(
    [caller(APP), admin(), caller("other"), caller("other", f"coordinator.spawn_for:{APP}"),
     caller(APP, "coordinator.spawn_under:other")]
)  # fmt: skip


@settings(max_examples=500)
@given(FACTS, CALLERS, st.sampled_from([None, "p", "nobody"]))
def test_what_is_explained_is_what_admission_decides(
    facts: SpawnBatchInput, who: Caller, parent_id: str | None
) -> None:
    asked = spawn_command(caller=who, parent_id=parent_id)
    [outcome] = admit([asked], facts)
    explained = explain_spawn(asked, facts)
    if not who.can_act_for(APP, "spawn_for"):
        # Asked of the caller before admission is: the route refuses what this one asks for.
        assert explained.refused_by[0].error == "application_ownership_required"
    elif isinstance(outcome, Spawned):
        assert (explained.admitted, explained.refused_by) == (True, [])
    else:
        first = explained.refused_by[0]
        assert (first.error, first.detail) == (outcome.code, outcome.detail)
        told = {name: outcome.members.get(name) for name in ("bound", "limit", "used", "frees")}
        assert told == {name: getattr(first, name) for name in told}
    assert explained.admitted == (not explained.refused_by)


@settings(max_examples=200)
@given(FACTS, st.sampled_from([None, "p"]))
def test_every_bound_that_holds_is_named_and_no_other(facts: SpawnBatchInput, parent_id: str | None) -> None:
    explained = explain_spawn(spawn_command(parent_id=parent_id), facts)
    full = [use.bound for use in explained.bounds if use.used >= use.limit]
    assert [why.bound for why in explained.refused_by if why.bound] == full
    assert [use.left for use in explained.bounds] == [max(0, u.limit - u.used) for u in explained.bounds]
    parent = session_row(id="p", root_id="r", depth=facts.sessions[ZONE, "p"].depth)
    for use in explained.bounds:
        alone = spawn_input(parent, limits=narrowed(**{use.bound: use.limit}), counts=facts.counts)
        [outcome] = admit([spawn_command(parent_id=parent_id)], alone)
        assert isinstance(outcome, LimitReached) == (use.bound in full), "each as if it were the only one"


@pytest.mark.parametrize("parent_id", [None, "root"])
def test_bounds_stand_in_the_order_they_are_checked_in_with_what_they_count_and_what_frees_them(
    parent_id: str | None,
) -> None:
    only_children = {"max_children", "max_depth", "max_concurrent"}
    explained = explain_spawn(spawn_command(parent_id=parent_id), spawn_input(ROOT))
    assert [use.bound for use in explained.bounds] == [
        bound.name for bound in BOUNDS if parent_id or bound.name not in only_children
    ]
    assert all(use.counts and use.frees for use in explained.bounds)


def test_a_spawn_is_refused_by_a_closed_door_first_and_by_full_bounds_after_it() -> None:
    facts = spawn_input(ROOT, limits=narrowed(max_sessions=0, max_children=0), frozen=True)
    explained = explain_spawn(spawn_command(parent_id="root"), facts)
    assert [why.error for why in explained.refused_by] == [
        "zone_frozen",
        "agent_zone_limit_exceeded",
        "agent_children_limit_exceeded",
    ]
    assert "thaws" in str(explained.refused_by[0].frees)


def test_of_a_suspended_parent_it_is_said_what_would_free_it() -> None:
    asleep = session_row(id="p", status=State.SUSPENDED, held=1)
    [why] = explain_spawn(spawn_command(parent_id="p"), spawn_input(asleep)).refused_by
    assert why.error == "parent_not_found"
    assert "suspended" in why.detail
    assert "resumed" in str(why.frees)


def test_an_ended_zone_is_not_found_and_nothing_frees_it() -> None:
    facts = SpawnBatchInput(NOW, {ZONE: ZoneAdmission(MAX_LIMITS, frozen=True, ended=True)})
    [outcome] = admit([spawn_command()], facts)
    assert isinstance(outcome, Problem)
    assert (outcome.status, outcome.code) == (404, "zone_not_found")
    assert [why.error for why in explain_spawn(spawn_command(), facts).refused_by] == ["zone_not_found"]


# -- why a session is as it is


def lineage(*held: str) -> tuple[Session, list[TreeNode]]:
    """A grandchild, and its line, nearest first, in which these bear a flag."""
    root = session_row(id="root")
    child = session_row(id="child", parent=root)
    own = session_row(id="own", parent=child, status=State.SUSPENDED if held else State.ACTIVE)
    return own, [tree_node(row, held=int(row.id in held)) for row in (own, child, root)]


def said(own: Session, line: Sequence[TreeNode] = (), now: int = NOW) -> list[str]:
    return explain_state(own, line, None, now)


def test_an_active_session_is_said_to_be_active_and_until_when() -> None:
    own, line = lineage()
    first, second = said(own, line)
    assert first.startswith("It is active")
    assert iso(own.expires_at) in second
    assert suspended_by(own, line) == []


@pytest.mark.parametrize(
    "held", [("own",), ("child",), ("root",), ("own", "child"), ("child", "root"), ("own", "child", "root")]
)
def test_a_suspended_session_names_everybody_whose_flag_holds_it_nearest_first(held: tuple[str, ...]) -> None:
    own, line = lineage(*held)
    assert suspended_by(own, line) == list(held)
    sentences = said(own, line)
    for sentence, name in zip(sentences, held, strict=False):
        assert ("of its own" in sentence) == (name == "own")
        assert f"ancestor {name} " in sentence or name == "own"
    assert sentences[len(held)] == f"Resume {' and '.join(held)} to wake it."
    assert not any("active" in sentence for sentence in sentences)


def test_a_suspended_session_that_no_flag_holds_is_not_said_to_be_active() -> None:
    own, _ = lineage("own")
    [first, *_] = said(own, [tree_node(own, held=0)])
    assert "suspended, though no flag" in first


@pytest.mark.parametrize("status", [State.ACTIVE, State.SUSPENDED])
def test_one_that_has_expired_is_said_to_have_run_out_before_any_sweep(status: State) -> None:
    own = session_row(expires_at=NOW - 90 * SECOND, status=status, held=int(status is State.SUSPENDED))
    [sentence] = said(own, [tree_node(own)])
    assert f"ran out at {iso(NOW - 90 * SECOND)}, 90 s ago" in sentence
    assert "sweep" in sentence


def test_one_that_was_swept_is_said_to_have_run_out_and_waits_for_nothing() -> None:
    own = session_row(status=State.TERMINATED, terminated_at=NOW - 7, termination_reason="ttl_expired")
    assert said(own) == [f"Its time ran out at {iso(NOW - 7)}."]


def test_one_that_was_ended_is_said_to_have_ended_with_its_reason() -> None:
    own = session_row(status=State.TERMINATED, terminated_at=NOW - 7, termination_reason="no more money")
    assert said(own) == [f"It was ended at {iso(NOW - 7)}: no more money."]


@pytest.mark.parametrize("status", [State.ACTIVE, State.SUSPENDED])
def test_one_that_is_stamped_is_said_to_have_ended_and_to_wait_for_its_cascade(status: State) -> None:
    own = session_row(
        status=status,
        terminated_at=NOW - 7,
        termination_reason="x",
        cascade_id="c",
        held=int(status is State.SUSPENDED),
    )
    ending = cascade_row("c", "root", stamped=9, settled=4)
    first, second = explain_state(own, [tree_node(own)], ending, NOW)
    assert first == f"It was ended at {iso(NOW - 7)}: x."
    assert "cascade c has settled 4 of 9" in second
    settled = msgspec.structs.replace(own, status=State.TERMINATED)
    assert explain_state(settled, [], ending, NOW) == [first]


@pytest.mark.parametrize(
    ("left", "words"),
    [(1, "0 s"), (119 * SECOND, "119 s"), (2 * MINUTE, "2 min"), (3 * 60 * MINUTE, "3 h"), (2 * DAY, "2 d")],
)
def test_spans_are_said_in_the_unit_people_would_use(left: int, words: str) -> None:
    own = session_row(expires_at=NOW + left)
    assert f"for {words} more" in said(own)[1]
