"""The quota table, bound by bound: at the limit less one, at the limit, and beyond it."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.core.errors import EXIT_REFUSED, LimitReached, Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned
from quarterdeck.domain.sessions.rules import BOUNDS, Count, CountKey, ExpiredGroup, admit, subtract_expired
from quarterdeck.domain.zones.model import CEILINGS, Limits
from tests.support.builders import APP, MAX_LIMITS, NOW, ZONE, session_row, spawn_command, spawn_input

ROOT = session_row(id="root")
SPARE = 3
"""How much of a bound the tests leave: enough to tell the last that fits from the first that does not."""

# What each row of the contract's table counts, written out again: which counter holds it, and whether only children
# are judged by it. `max_depth` counts nothing and has tests of its own.
COUNTED: dict[str, tuple[CountKey, bool]] = {
    "max_sessions": ((ZONE, "zone", ""), False),
    "max_sessions_per_application": ((ZONE, "application", APP), False),
    "max_children": ((ZONE, "parent", "root"), True),
    "max_tree_size": ((ZONE, "tree", "root"), True),
    "max_tree_spawns": ((ZONE, "tree", "root"), True),
    "max_concurrent": ((ZONE, "concurrent", ""), True),
}
CODES = {
    "max_sessions": "agent_zone_limit_exceeded",
    "max_sessions_per_application": "agent_limit_exceeded",
    "max_children": "agent_children_limit_exceeded",
    "max_depth": "agent_depth_limit_exceeded",
    "max_tree_size": "agent_tree_limit_exceeded",
    "max_tree_spawns": "agent_tree_spawns_exceeded",
    "max_concurrent": "agent_concurrency_limit_exceeded",
}


def narrowed(**limits: int) -> Limits:
    return msgspec.structs.replace(MAX_LIMITS, **limits)


def used(bound: str, number: int) -> dict[CountKey, Count]:
    """Counts by which so much of a bound is used, and more has been admitted than is live."""
    key, _ = COUNTED[bound]
    if bound == "max_tree_spawns":
        return {key: Count(live=1, ever=number)}
    return {key: Count(live=number, ever=number + 1_000)}


def judged(bound: str) -> Spawn:
    """An ask that the bound is about."""
    _, only_children = COUNTED[bound]
    return spawn_command(parent_id="root") if only_children else spawn_command()


def created(outcome: Spawned | Problem) -> Session:
    assert isinstance(outcome, Spawned), outcome
    assert outcome.created
    return outcome.session


def refused(outcome: Spawned | Problem) -> LimitReached:
    assert isinstance(outcome, LimitReached), outcome
    return outcome


def test_the_table_has_the_contracts_seven_rows_and_codes() -> None:
    assert {bound.name: bound.code for bound in BOUNDS} == CODES
    assert set(CODES) == set(CEILINGS) == set(Limits.__struct_fields__)


def test_the_platforms_defaults_are_the_contracts() -> None:
    assert Limits() == Limits(
        max_depth=10,
        max_children=10,
        max_tree_size=50,
        max_tree_spawns=500,
        max_concurrent=50,
        max_sessions=50,
        max_sessions_per_application=200,
    )


@pytest.mark.parametrize("bound", COUNTED)
@pytest.mark.parametrize("limit", [1, 8])
def test_one_below_a_limit_one_more_is_admitted(bound: str, limit: int) -> None:
    facts = spawn_input(ROOT, limits=narrowed(**{bound: limit}), counts=used(bound, limit - 1))
    [outcome] = admit([judged(bound)], facts)
    assert created(outcome)


@pytest.mark.parametrize("bound", COUNTED)
@pytest.mark.parametrize("limit", [0, 1, 8])
@pytest.mark.parametrize("beyond", [0, 1])
def test_at_a_limit_and_beyond_it_nothing_is_admitted_and_the_bound_is_named(
    bound: str, limit: int, beyond: int
) -> None:
    # Beyond: the limit was lowered under those who run already.
    facts = spawn_input(ROOT, limits=narrowed(**{bound: limit}), counts=used(bound, limit + beyond))
    [outcome] = admit([judged(bound)], facts)
    refusal = refused(outcome)
    assert refusal.code == CODES[bound]
    assert refusal.members["bound"] == bound
    assert refusal.members["limit"] == limit
    assert refusal.members["used"] == limit + beyond
    assert str(refusal.members["frees"])
    assert refusal.exit_code == EXIT_REFUSED


@pytest.mark.parametrize("bound", COUNTED)
def test_within_one_batch_exactly_what_is_left_of_a_bound_is_admitted_in_order_of_arrival(bound: str) -> None:
    limit = 10
    facts = spawn_input(ROOT, limits=narrowed(**{bound: limit}), counts=used(bound, limit - SPARE))
    outcomes = admit([judged(bound) for _ in range(SPARE + 2)], facts)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True] * SPARE + [False] * 2
    for outcome in outcomes[SPARE:]:
        assert refused(outcome).members["used"] == limit


@pytest.mark.parametrize(("depth", "admitted"), [(0, True), (3, True), (4, True), (5, False), (6, False)])
def test_a_node_at_max_depth_may_exist_and_one_deeper_may_not(depth: int, admitted: bool) -> None:
    parent = session_row(id="p", depth=depth, parent_id="x", root_id="root")
    [outcome] = admit([spawn_command(parent_id="p")], spawn_input(parent, limits=narrowed(max_depth=5)))
    if admitted:
        assert created(outcome).depth == depth + 1
    else:
        assert refused(outcome).members == {
            "bound": "max_depth",
            "limit": 5,
            "used": depth,
            "frees": refused(outcome).members["frees"],
        }


def test_a_root_is_at_depth_0_which_no_limit_on_depth_forbids() -> None:
    [root, child] = admit(
        [spawn_command(), spawn_command(parent_id="root")], spawn_input(ROOT, limits=narrowed(max_depth=0))
    )
    assert created(root).depth == 0
    assert refused(child).members["bound"] == "max_depth"


def test_a_root_is_counted_in_its_own_tree() -> None:
    for bound in ("max_tree_size", "max_tree_spawns"):
        [none] = admit([spawn_command()], spawn_input(limits=narrowed(**{bound: 0})))
        assert refused(none).members["bound"] == bound
        [one] = admit([spawn_command()], spawn_input(limits=narrowed(**{bound: 1})))
        assert created(one)


def test_roots_are_not_judged_by_the_bounds_of_children() -> None:
    limits = narrowed(max_depth=0, max_children=0, max_concurrent=0)
    outcomes = admit([spawn_command() for _ in range(5)], spawn_input(limits=limits))
    assert all(isinstance(outcome, Spawned) for outcome in outcomes)


def test_ended_sessions_still_count_in_what_a_tree_may_ever_have() -> None:
    counts = {(ZONE, "tree", "root"): Count(live=1, ever=500)}
    [outcome] = admit([spawn_command(parent_id="root")], spawn_input(ROOT, limits=Limits(), counts=counts))
    refusal = refused(outcome)
    assert refusal.code == "agent_tree_spawns_exceeded"
    assert refusal.retry_after is None, "waiting does not free what counts for ever"


def test_waiting_is_advised_only_where_somebody_elses_ending_would_help() -> None:
    waits = {bound.name for bound in BOUNDS if bound.is_retryable}
    assert waits == set(CODES) - {"max_depth", "max_tree_spawns"}
    for bound in BOUNDS:
        assert (rules.limit_exceeded(bound, 1, 1).retry_after is not None) == bound.is_retryable


@pytest.mark.parametrize("first", range(len(BOUNDS)))
def test_of_several_bounds_that_hold_the_first_of_the_table_is_named(first: int) -> None:
    limits = narrowed(**{bound.name: 0 for bound in BOUNDS[first:]})
    [outcome] = admit([spawn_command(parent_id="root")], spawn_input(ROOT, limits=limits))
    assert refused(outcome).members["bound"] == BOUNDS[first].name


def test_applications_trees_and_parents_are_counted_apart() -> None:
    left, right = session_row(id="left"), session_row(id="right")
    facts = spawn_input(left, right, limits=narrowed(max_children=1, max_sessions_per_application=2))
    asks = [
        spawn_command(parent_id="left", application_id="a"),
        spawn_command(parent_id="right", application_id="a"),
        spawn_command(application_id="a"),
        spawn_command(application_id="b"),
        spawn_command(parent_id="left", application_id="b"),
    ]
    outcomes = admit(asks, facts)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True, True, False, True, False]
    assert refused(outcomes[2]).members["bound"] == "max_sessions_per_application"
    assert refused(outcomes[4]).members["bound"] == "max_children"


def test_zones_are_counted_apart() -> None:
    facts = spawn_input(limits=narrowed(max_sessions=1))
    other = facts.zones[ZONE]
    both = rules.SpawnBatchInput(now=NOW, zones={ZONE: other, "y": other})
    outcomes = admit([spawn_command(), spawn_command("y"), spawn_command(), spawn_command("y")], both)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True, True, False, False]


def test_what_is_refused_counts_against_nobody_after_it() -> None:
    facts = spawn_input(ROOT, limits=narrowed(max_sessions=2, max_depth=0))
    asks = [
        spawn_command(parent_id="root"),
        spawn_command(parent_id="root"),
        spawn_command(parent_id="nobody"),
        spawn_command(),
        spawn_command(),
    ]
    outcomes = admit(asks, facts)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [False, False, False, True, True]


def test_the_limits_in_force_are_kept_on_each_admitted_session() -> None:
    limits = narrowed(max_children=7)
    [outcome] = admit([spawn_command()], spawn_input(limits=limits))
    assert msgspec.json.decode(created(outcome).limits, type=Limits) == limits


# -- expired but unswept


@pytest.mark.parametrize("bound", [name for name in COUNTED if name != "max_tree_spawns"])
def test_what_has_expired_is_subtracted_from_every_bound_on_the_living(bound: str) -> None:
    key, only_children = COUNTED[bound]
    gone = ExpiredGroup(ZONE, APP, "root" if only_children else None, "root" if only_children else "r9", 2)
    counts = {key: Count(live=8, ever=8)}
    corrected = subtract_expired(counts, [gone])
    assert corrected[key] == Count(live=6, ever=8)
    facts = spawn_input(ROOT, limits=narrowed(**{bound: 8}), counts=corrected)
    outcomes = admit([judged(bound) for _ in range(3)], facts)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True, True, False]


def test_what_has_expired_was_admitted_all_the_same() -> None:
    counts = {(ZONE, "tree", "root"): Count(live=8, ever=8)}
    corrected = subtract_expired(counts, [ExpiredGroup(ZONE, APP, "root", "root", 7)])
    [outcome] = admit(
        [spawn_command(parent_id="root")], spawn_input(ROOT, limits=narrowed(max_tree_spawns=8), counts=corrected)
    )
    assert refused(outcome).members["bound"] == "max_tree_spawns"


def test_subtracting_touches_no_other_zone_application_tree_or_parent() -> None:
    counts = {
        (ZONE, scope, key): Count(5, 5)
        for scope, key in [("zone", ""), ("application", "b"), ("tree", "t"), ("parent", "p"), ("concurrent", "")]
    }
    counts["y", "zone", ""] = Count(5, 5)
    corrected = subtract_expired(counts, [ExpiredGroup(ZONE, "a", None, "r", 2), ExpiredGroup(ZONE, "a", "q", "r", 1)])
    assert corrected == counts | {(ZONE, "zone", ""): Count(2, 5), (ZONE, "concurrent", ""): Count(4, 5)}
    assert counts[ZONE, "zone", ""] == Count(5, 5), "what was handed in is left as it was"


# -- counting


def test_a_session_is_counted_wherever_a_bound_looks_for_it() -> None:
    child = session_row(id="c", parent=ROOT)
    assert rules.count_sessions([ROOT, child]) == {
        (ZONE, "zone", ""): 2,
        (ZONE, "application", APP): 2,
        (ZONE, "tree", "root"): 2,
        (ZONE, "parent", "root"): 1,
        (ZONE, "concurrent", ""): 1,
    }


def test_an_ended_session_empties_its_children_and_an_ended_root_its_tree() -> None:
    child = session_row(id="c", parent=ROOT)
    assert set(rules.obsolete_count_keys(child)) == {(ZONE, "parent", "c")}
    assert set(rules.obsolete_count_keys(ROOT)) == {(ZONE, "parent", "root"), (ZONE, "tree", "root")}


def test_an_admitted_session_has_the_id_that_was_made_for_it() -> None:
    own = new_id()
    [outcome] = admit([spawn_command(id=own)], spawn_input())
    assert created(outcome).id == created(outcome).root_id == own
