"""The quota table: each bound one below its limit, at the limit and above it."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.core.errors import EXIT_REFUSED, LimitReached, Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned
from quarterdeck.domain.sessions.rules import BOUNDS
from quarterdeck.domain.sessions.rules.admission import (
    Count,
    CountKey,
    ExpiredGroup,
    SpawnBatchInput,
    admit,
    count_sessions,
    limit_exceeded,
    obsolete_count_keys,
    subtract_expired,
)
from quarterdeck.domain.zones.model import CEILINGS, Limits
from tests.support.builders import APP, MAX_LIMITS, NOW, ZONE, session_row, spawn_command, spawn_input

ROOT = session_row(id="root")
FREE = 3
"""How many sessions a test leaves free below a limit."""

# The counter of each bound, and whether the bound applies only to children. This repeats the table of the contract on
# purpose. `max_depth` has no counter and has its own tests.
COUNT_KEYS: dict[str, tuple[CountKey, bool]] = {
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


def limits_with(**limits: int) -> Limits:
    return msgspec.structs.replace(MAX_LIMITS, **limits)


def counts_with(bound: str, number: int) -> dict[CountKey, Count]:
    """Counts with `number` used of a bound. More sessions were admitted than are live."""
    key, _ = COUNT_KEYS[bound]
    if bound == "max_tree_spawns":
        return {key: Count(live=1, ever=number)}
    return {key: Count(live=number, ever=number + 1_000)}


def command_for(bound: str) -> Spawn:
    """A command to which the bound applies."""
    _, only_children = COUNT_KEYS[bound]
    return spawn_command(parent_id="root") if only_children else spawn_command()


def expect_created(outcome: Spawned | Problem) -> Session:
    assert isinstance(outcome, Spawned), outcome
    assert outcome.created
    return outcome.session


def expect_refused(outcome: Spawned | Problem) -> LimitReached:
    assert isinstance(outcome, LimitReached), outcome
    return outcome


def test_bounds_table_has_the_seven_bounds_and_their_codes() -> None:
    assert {bound.name: bound.code for bound in BOUNDS} == CODES
    assert set(CODES) == set(CEILINGS) == set(Limits.__struct_fields__)


def test_default_limits_are_the_published_ones() -> None:
    assert Limits() == Limits(
        max_depth=10,
        max_children=10,
        max_tree_size=50,
        max_tree_spawns=500,
        max_concurrent=50,
        max_sessions=50,
        max_sessions_per_application=200,
    )


@pytest.mark.parametrize("bound", COUNT_KEYS)
@pytest.mark.parametrize("limit", [1, 8])
def test_session_is_admitted_one_below_a_limit(bound: str, limit: int) -> None:
    batch_input = spawn_input(ROOT, limits=limits_with(**{bound: limit}), counts=counts_with(bound, limit - 1))
    [outcome] = admit([command_for(bound)], batch_input)
    assert expect_created(outcome)


@pytest.mark.parametrize("bound", COUNT_KEYS)
@pytest.mark.parametrize("limit", [0, 1, 8])
@pytest.mark.parametrize("excess", [0, 1])
def test_session_is_refused_at_and_above_a_limit_with_the_name_of_the_bound(
    bound: str, limit: int, excess: int
) -> None:
    # The excess is 1 when the limit was lowered while sessions were live.
    batch_input = spawn_input(ROOT, limits=limits_with(**{bound: limit}), counts=counts_with(bound, limit + excess))
    [outcome] = admit([command_for(bound)], batch_input)
    refusal = expect_refused(outcome)
    assert refusal.code == CODES[bound]
    assert refusal.members["bound"] == bound
    assert refusal.members["limit"] == limit
    assert refusal.members["used"] == limit + excess
    assert str(refusal.members["frees"])
    assert refusal.exit_code == EXIT_REFUSED


@pytest.mark.parametrize("bound", COUNT_KEYS)
def test_batch_admits_up_to_the_limit_in_order_of_arrival(bound: str) -> None:
    limit = 10
    batch_input = spawn_input(ROOT, limits=limits_with(**{bound: limit}), counts=counts_with(bound, limit - FREE))
    outcomes = admit([command_for(bound) for _ in range(FREE + 2)], batch_input)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True] * FREE + [False] * 2
    for outcome in outcomes[FREE:]:
        assert expect_refused(outcome).members["used"] == limit


@pytest.mark.parametrize(("depth", "admitted"), [(0, True), (3, True), (4, True), (5, False), (6, False)])
def test_session_at_max_depth_is_admitted_and_a_deeper_one_refused(depth: int, admitted: bool) -> None:
    parent = session_row(id="p", depth=depth, parent_id="x", root_id="root")
    [outcome] = admit([spawn_command(parent_id="p")], spawn_input(parent, limits=limits_with(max_depth=5)))
    if admitted:
        assert expect_created(outcome).depth == depth + 1
    else:
        assert expect_refused(outcome).members == {
            "bound": "max_depth",
            "limit": 5,
            "used": depth,
            "frees": expect_refused(outcome).members["frees"],
        }


def test_root_has_depth_0_and_is_admitted_with_max_depth_0() -> None:
    [root, child] = admit(
        [spawn_command(), spawn_command(parent_id="root")], spawn_input(ROOT, limits=limits_with(max_depth=0))
    )
    assert expect_created(root).depth == 0
    assert expect_refused(child).members["bound"] == "max_depth"


def test_root_counts_in_its_own_tree() -> None:
    for bound in ("max_tree_size", "max_tree_spawns"):
        [refused] = admit([spawn_command()], spawn_input(limits=limits_with(**{bound: 0})))
        assert expect_refused(refused).members["bound"] == bound
        [admitted] = admit([spawn_command()], spawn_input(limits=limits_with(**{bound: 1})))
        assert expect_created(admitted)


def test_bounds_of_children_do_not_apply_to_roots() -> None:
    limits = limits_with(max_depth=0, max_children=0, max_concurrent=0)
    outcomes = admit([spawn_command() for _ in range(5)], spawn_input(limits=limits))
    assert all(isinstance(outcome, Spawned) for outcome in outcomes)


def test_ended_sessions_still_count_against_max_tree_spawns() -> None:
    counts = {(ZONE, "tree", "root"): Count(live=1, ever=500)}
    [outcome] = admit([spawn_command(parent_id="root")], spawn_input(ROOT, limits=Limits(), counts=counts))
    refusal = expect_refused(outcome)
    assert refusal.code == "agent_tree_spawns_exceeded"
    assert refusal.retry_after is None, "waiting does not lower the number of spawns"


def test_retry_after_is_set_only_for_bounds_that_an_ending_session_frees() -> None:
    retryable = {bound.name for bound in BOUNDS if bound.is_retryable}
    assert retryable == set(CODES) - {"max_depth", "max_tree_spawns"}
    for bound in BOUNDS:
        assert (limit_exceeded(bound, 1, 1).retry_after is not None) == bound.is_retryable


@pytest.mark.parametrize("first", range(len(BOUNDS)))
def test_first_exceeded_bound_of_the_table_is_named(first: int) -> None:
    limits = limits_with(**{bound.name: 0 for bound in BOUNDS[first:]})
    [outcome] = admit([spawn_command(parent_id="root")], spawn_input(ROOT, limits=limits))
    assert expect_refused(outcome).members["bound"] == BOUNDS[first].name


def test_applications_trees_and_parents_are_counted_separately() -> None:
    left, right = session_row(id="left"), session_row(id="right")
    batch_input = spawn_input(left, right, limits=limits_with(max_children=1, max_sessions_per_application=2))
    commands = [
        spawn_command(parent_id="left", application_id="a"),
        spawn_command(parent_id="right", application_id="a"),
        spawn_command(application_id="a"),
        spawn_command(application_id="b"),
        spawn_command(parent_id="left", application_id="b"),
    ]
    outcomes = admit(commands, batch_input)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True, True, False, True, False]
    assert expect_refused(outcomes[2]).members["bound"] == "max_sessions_per_application"
    assert expect_refused(outcomes[4]).members["bound"] == "max_children"


def test_zones_are_counted_separately() -> None:
    batch_input = spawn_input(limits=limits_with(max_sessions=1))
    admission = batch_input.zones[ZONE]
    two_zones = SpawnBatchInput(now=NOW, zones={ZONE: admission, "y": admission})
    outcomes = admit([spawn_command(), spawn_command("y"), spawn_command(), spawn_command("y")], two_zones)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True, True, False, False]


def test_refused_spawns_do_not_count_against_later_ones() -> None:
    batch_input = spawn_input(ROOT, limits=limits_with(max_sessions=2, max_depth=0))
    commands = [
        spawn_command(parent_id="root"),
        spawn_command(parent_id="root"),
        spawn_command(parent_id="unknown"),
        spawn_command(),
        spawn_command(),
    ]
    outcomes = admit(commands, batch_input)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [False, False, False, True, True]


def test_admitted_session_stores_the_limits_in_force() -> None:
    limits = limits_with(max_children=7)
    [outcome] = admit([spawn_command()], spawn_input(limits=limits))
    assert msgspec.json.decode(expect_created(outcome).limits, type=Limits) == limits


# -- expired sessions that were not swept


@pytest.mark.parametrize("bound", [name for name in COUNT_KEYS if name != "max_tree_spawns"])
def test_expired_sessions_are_subtracted_from_every_bound_on_live_sessions(bound: str) -> None:
    key, only_children = COUNT_KEYS[bound]
    expired = ExpiredGroup(ZONE, APP, "root" if only_children else None, "root" if only_children else "r9", 2)
    counts = {key: Count(live=8, ever=8)}
    corrected = subtract_expired(counts, [expired])
    assert corrected[key] == Count(live=6, ever=8)
    batch_input = spawn_input(ROOT, limits=limits_with(**{bound: 8}), counts=corrected)
    outcomes = admit([command_for(bound) for _ in range(3)], batch_input)
    assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True, True, False]


def test_expired_sessions_still_count_against_max_tree_spawns() -> None:
    counts = {(ZONE, "tree", "root"): Count(live=8, ever=8)}
    corrected = subtract_expired(counts, [ExpiredGroup(ZONE, APP, "root", "root", 7)])
    [outcome] = admit(
        [spawn_command(parent_id="root")], spawn_input(ROOT, limits=limits_with(max_tree_spawns=8), counts=corrected)
    )
    assert expect_refused(outcome).members["bound"] == "max_tree_spawns"


def test_subtract_expired_changes_only_the_counts_of_the_group() -> None:
    counts = {
        (ZONE, scope, key): Count(5, 5)
        for scope, key in [("zone", ""), ("application", "b"), ("tree", "t"), ("parent", "p"), ("concurrent", "")]
    }
    counts["y", "zone", ""] = Count(5, 5)
    corrected = subtract_expired(counts, [ExpiredGroup(ZONE, "a", None, "r", 2), ExpiredGroup(ZONE, "a", "q", "r", 1)])
    assert corrected == counts | {(ZONE, "zone", ""): Count(2, 5), (ZONE, "concurrent", ""): Count(4, 5)}
    assert counts[ZONE, "zone", ""] == Count(5, 5), "the counts passed in are unchanged"


# -- counting


def test_session_is_counted_under_every_key_that_a_bound_reads() -> None:
    child = session_row(id="c", parent=ROOT)
    assert count_sessions([ROOT, child]) == {
        (ZONE, "zone", ""): 2,
        (ZONE, "application", APP): 2,
        (ZONE, "tree", "root"): 2,
        (ZONE, "parent", "root"): 1,
        (ZONE, "concurrent", ""): 1,
    }


def test_ending_a_session_makes_its_parent_and_tree_counts_obsolete() -> None:
    child = session_row(id="c", parent=ROOT)
    assert set(obsolete_count_keys(child)) == {(ZONE, "parent", "c")}
    assert set(obsolete_count_keys(ROOT)) == {(ZONE, "parent", "root"), (ZONE, "tree", "root")}


def test_admitted_session_has_the_id_of_its_command() -> None:
    session_id = new_id()
    [outcome] = admit([spawn_command(id=session_id)], spawn_input())
    assert expect_created(outcome).id == expect_created(outcome).root_id == session_id
