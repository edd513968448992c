"""Tasks that wait for tasks: what one that ends means for the others, and that none waits for itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from hypothesis import given, strategies as st

from quarterdeck.domain.tasks.model.commands import Cancel, FailForCycle, Patch, Retry, UnblockDependents
from quarterdeck.domain.tasks.model.rows import State, Task, WaitsFor
from quarterdeck.domain.tasks.rules.dependency_graph import find_cycle, find_stuck, order_by_dependencies
from tests.support import task_rules
from tests.support.builders import NOW, ZONE
from tests.support.task_rules import (
    CREATOR,
    claim_command,
    complete_command,
    create_all,
    create_command,
    decided_events,
    dependents,
    new_decider,
    require_code,
    require_task,
    task_row,
)

READY = (State.PENDING, WaitsFor.NOTHING)


def waiting(task_id: str, unmet: int = 1, **changed: object) -> Task:
    return task_row(
        State.PENDING,
        task_id,
        dependency_count=unmet,
        unmet_dependencies=unmet,
        waits_for=WaitsFor.DEPENDENCIES,
        **changed,
    )


def failed(task_id: str = "t") -> Task:
    return task_row(State.FAILED, task_id, final=1, dependents_pending=1, waits_for=WaitsFor.NOTHING)


def spread(task_id: str = "t") -> UnblockDependents:
    return UnblockDependents(zone_id=ZONE, id=task_id)


def patch(depends_on: Sequence[str], task_id: str = "t") -> Patch:
    return Patch(zone_id=ZONE, caller=CREATOR, id=task_id, depends_on=tuple(depends_on))


def test_what_depends_on_something_waits_for_it_and_on_what_is_done_for_nothing() -> None:
    here = new_decider(task_row(State.RUNNING, "a"), task_row(State.COMPLETED, "b"))
    first, second = create_all(
        here, create_command("t1", depends_on=("a", "b")), create_command("t2", depends_on=("b",))
    )
    assert (first.waits_for, first.unmet_dependencies, first.dependency_count) == (WaitsFor.DEPENDENCIES, 1, 2)
    assert (second.status, second.waits_for) == READY
    assert here.met_dependencies == {((ZONE, "t1"), "b"), ((ZONE, "t2"), "b")}


def test_what_depends_on_something_unknown_is_refused() -> None:
    assert require_code(new_decider().decide(create_command(depends_on=("nothing",)))) == "unknown_dependency"


def test_what_depends_on_something_that_has_failed_fails_with_it_unless_it_is_to_run() -> None:
    here = new_decider(failed("a"))
    with_it, without_it = create_all(
        here,
        create_command("t1", depends_on=("a",)),
        create_command("t2", depends_on=("a",), on_dependency_failure="run"),
    )
    assert (with_it.status, with_it.final, with_it.reason) == (State.FAILED, 1, "dependency_failed")
    assert (without_it.status, without_it.waits_for) == READY


def test_what_is_made_together_finds_each_other() -> None:
    here = new_decider()
    _, second = create_all(here, create_command("t1"), create_command("t2", depends_on=("t1",)))
    assert second.waits_for == WaitsFor.DEPENDENCIES


def test_a_completion_frees_those_that_wait_for_nothing_else_in_the_same_batch() -> None:
    here = new_decider(
        task_row(State.RUNNING), waiting("d1"), waiting("d2", 2), dependents=dependents({"t": ["d1", "d2"]})
    )
    here.decide(complete_command())
    assert decided_events(here) == [("task.completed", "t"), ("task.unblocked", "d1")]
    assert here.task((ZONE, "d2")).unmet_dependencies == 1
    assert here.met_dependencies == {((ZONE, "d1"), "t"), ((ZONE, "d2"), "t")}
    assert task_rules.claim_ids(here, claim_command(5, token="k2")) == ["d1"]


def test_a_paused_dependent_is_freed_and_stays_paused() -> None:
    here = new_decider(
        task_row(State.RUNNING),
        task_row(State.PAUSED, "d", dependency_count=1, unmet_dependencies=1),
        dependents=dependents({"t": ["d"]}),
    )
    here.decide(complete_command())
    after = here.task((ZONE, "d"))
    assert (after.status, after.unmet_dependencies) == (State.PAUSED, 0)


def test_what_was_to_begin_later_still_waits_for_its_moment_when_it_is_freed() -> None:
    late = waiting("d", available_at=NOW + 1_000)
    here = new_decider(task_row(State.RUNNING), late, dependents=dependents({"t": ["d"]}))
    here.decide(complete_command())
    assert here.task((ZONE, "d")).waits_for == WaitsFor.TIME


def test_a_final_failure_fails_those_that_depend_on_it_and_they_spread_it_further() -> None:
    here = new_decider(failed(), waiting("d"), dependents=dependents({"t": ["d"]}))
    assert require_task(here.decide(spread())).dependents_pending == 0
    after = here.task((ZONE, "d"))
    assert (after.status, after.reason, after.final, after.dependents_pending) == (
        State.FAILED,
        "dependency_failed",
        1,
        1,
    )
    assert decided_events(here) == [("task.failed", "d")]
    assert "'t'" in str(here.content_updates[ZONE, "d"].last_error)


def test_a_dependent_that_is_to_run_anyway_goes_on_without_it() -> None:
    here = new_decider(failed(), waiting("d", on_dependency_failure="run"), dependents=dependents({"t": ["d"]}))
    here.decide(spread())
    assert (here.task((ZONE, "d")).status, here.task((ZONE, "d")).waits_for) == READY


def test_what_is_too_much_for_one_batch_is_left_to_the_next() -> None:
    here = new_decider(
        task_row(State.RUNNING), waiting("d"), dependents=dependents({"t": ["d"]}), dependents_truncated=True
    )
    assert require_task(here.decide(complete_command())).dependents_pending == 1
    again = new_decider(here.task((ZONE, "t")), waiting("e"), dependents=dependents({"t": ["e"]}))
    assert require_task(again.decide(spread())).dependents_pending == 0
    assert (again.task((ZONE, "e")).status, again.task((ZONE, "e")).waits_for) == READY


def test_a_failure_that_is_tried_again_spreads_to_nobody() -> None:
    here = new_decider(task_row(State.FAILED), waiting("d"), dependents=dependents({"t": ["d"]}))
    here.decide(spread())
    assert not here.events


def test_a_canceled_task_spreads_as_a_failed_one_does() -> None:
    here = new_decider(task_row(), waiting("d"), dependents=dependents({"t": ["d"]}))
    here.decide(Cancel(zone_id=ZONE, caller=CREATOR, id="t", reason="r"))
    here.decide(spread())
    assert here.task((ZONE, "d")).status is State.FAILED


def test_a_retry_by_hand_waits_anew_for_what_is_not_done() -> None:
    mine = task_row(State.FAILED, final=1, reason="dependency_failed", dependency_count=2)
    retry = Retry(zone_id=ZONE, caller=CREATOR, id="t")
    ahead = {(ZONE, "t"): ["a", "b"]}
    here = new_decider(mine, task_row(State.PENDING, "a"), task_row(State.COMPLETED, "b"), dependencies=ahead)
    assert (require_task(here.decide(retry)).waits_for, here.reopened_dependencies) == (
        WaitsFor.DEPENDENCIES,
        {((ZONE, "t"), "a")},
    )
    assert (
        require_code(new_decider(mine, failed("a"), task_row(State.COMPLETED, "b"), dependencies=ahead).decide(retry))
        == "task_state_conflict"
    )


def test_a_change_that_closes_a_cycle_is_refused_and_the_cycle_is_named() -> None:
    ahead = {(ZONE, "b"): ["c"], (ZONE, "c"): ["t"]}
    here = new_decider(task_row(), waiting("b"), waiting("c"), dependencies=ahead)
    refusal = here.decide(patch(["b"]))
    assert require_code(refusal) == "dependency_cycle"
    assert getattr(refusal, "members", {})["cycle"] == ["t", "b", "c", "t"]
    assert not here.originals
    assert require_code(new_decider(task_row()).decide(patch(["t"]))) == "dependency_cycle"


def test_two_changes_of_one_batch_close_no_cycle_either() -> None:
    here = new_decider(task_row(task_id="a"), task_row(task_id="b"))
    require_task(here.decide(patch(["b"], "a")))
    assert require_code(here.decide(patch(["a"], "b"))) == "dependency_cycle"


def test_dependencies_change_only_before_the_work_has_begun() -> None:
    for status in (State.RUNNING, State.FAILED, State.COMPLETED):
        assert (
            require_code(new_decider(task_row(status), task_row(task_id="a")).decide(patch(["a"])))
            == "task_state_conflict"
        )


def test_a_cycle_that_should_not_be_there_is_cut() -> None:
    here = new_decider(waiting("t"))
    after = require_task(here.decide(FailForCycle(zone_id=ZONE, id="t", cycle=("t", "u", "t"))))
    assert (after.status, after.reason) == (State.FAILED, "dependency_cycle")
    assert here.events[0].cycle == ("t", "u", "t")
    assert (
        require_task(new_decider(task_row()).decide(FailForCycle(zone_id=ZONE, id="t", cycle=("t", "t")))).status
        is State.PENDING
    )


# -- the graph ---------------------------------------------------------------------------------------------------

GRAPHS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.sampled_from("abcdefgh"), max_size=4, unique=True), max_size=8
)


@given(GRAPHS)
def test_a_cycle_is_found_where_one_is_and_can_be_walked(graph: dict[str, list[str]]) -> None:
    for name in graph:
        way = find_cycle(name, graph)
        reached: set[str] = set()
        pending = [*graph[name]]
        while pending:
            at = pending.pop()
            if at not in reached:
                reached.add(at)
                pending += graph.get(at, [])
        assert (way is not None) == (name in reached)
        if way is not None:
            assert way[0] == way[-1] == name
            assert all(after in graph[before] for before, after in pairwise(way))


@given(GRAPHS)
def test_tasks_of_one_request_are_made_after_those_they_depend_on_or_named_with_their_cycle(
    graph: dict[str, list[str]],
) -> None:
    order, cycles = order_by_dependencies(graph)
    assert sorted([*order, *cycles]) == sorted(graph)
    assert set(cycles) == find_stuck(graph)
    for place, name in enumerate(order):
        assert all(each not in graph or each in order[:place] for each in graph[name])
    for way in cycles.values():
        assert way[0] == way[-1]
        assert all(after in graph[before] for before, after in pairwise(way))


def test_a_chain_of_ten_thousand_is_walked_without_recursion() -> None:
    chain = {str(n): [str(n + 1)] for n in range(10_000)}
    assert find_cycle("0", chain) is None
    way = find_cycle("0", chain | {"9999": ["0"]})
    assert way is not None
    assert len(way) == 10_001
    assert find_stuck(chain | {"9999": ["0"]}) == set(chain)


def test_tasks_that_are_not_in_the_way_of_each_other_keep_the_order_of_the_request() -> None:
    assert order_by_dependencies({"c": [], "a": ["c"], "b": []})[0] == ["c", "b", "a"]


def test_a_dependent_that_was_freed_twice_waits_for_one_less_once() -> None:
    here = new_decider(task_row(State.RUNNING), waiting("d", 2), dependents=dependents({"t": ["d", "d"]}))
    here.decide(complete_command())
    assert here.task((ZONE, "d")).unmet_dependencies == 1
    assert msgspec.structs.asdict(here.task((ZONE, "d")))["waits"] == WaitsFor.DEPENDENCIES
