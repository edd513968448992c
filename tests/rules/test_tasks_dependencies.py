"""Dependencies between tasks: how a finished task affects its dependents, and detection of cycles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from hypothesis import given, strategies as st

from quarterdeck.domain.tasks.model.commands import Cancel, FailForCycle, Patch, Retry, UnblockDependents
from quarterdeck.domain.tasks.model.rows import State, Task, WaitsFor
from quarterdeck.domain.tasks.rules.dependency_graph import find_cycle, find_stuck_tasks, order_by_dependencies
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


def waiting(task_id: str, unmet: int = 1, **changes: object) -> Task:
    return task_row(
        State.PENDING,
        task_id,
        dependency_count=unmet,
        unmet_dependencies=unmet,
        waits_for=WaitsFor.DEPENDENCIES,
        **changes,
    )


def failed(task_id: str = "t") -> Task:
    return task_row(State.FAILED, task_id, final=1, dependents_pending=1, waits_for=WaitsFor.NOTHING)


def unblock_command(task_id: str = "t") -> UnblockDependents:
    return UnblockDependents(zone_id=ZONE, id=task_id)


def patch_command(depends_on: Sequence[str], task_id: str = "t") -> Patch:
    return Patch(zone_id=ZONE, caller=CREATOR, id=task_id, depends_on=tuple(depends_on))


def test_new_task_waits_only_for_unfinished_dependencies() -> None:
    decider = new_decider(task_row(State.RUNNING, "a"), task_row(State.COMPLETED, "b"))
    first, second = create_all(
        decider, create_command("t1", depends_on=("a", "b")), create_command("t2", depends_on=("b",))
    )
    assert (first.waits_for, first.unmet_dependencies, first.dependency_count) == (WaitsFor.DEPENDENCIES, 1, 2)
    assert (second.status, second.waits_for) == READY
    assert decider.batch.dependencies.met == {((ZONE, "t1"), "b"), ((ZONE, "t2"), "b")}


def test_unknown_dependency_is_refused() -> None:
    assert require_code(new_decider().decide(create_command(depends_on=("unknown",)))) == "unknown_dependency"


def test_new_task_with_a_failed_dependency_fails_unless_set_to_run() -> None:
    decider = new_decider(failed("a"))
    fails, runs = create_all(
        decider,
        create_command("t1", depends_on=("a",)),
        create_command("t2", depends_on=("a",), on_dependency_failure="run"),
    )
    assert (fails.status, fails.final, fails.reason) == (State.FAILED, 1, "dependency_failed")
    assert (runs.status, runs.waits_for) == READY


def test_tasks_of_one_batch_can_depend_on_each_other() -> None:
    decider = new_decider()
    _, second = create_all(decider, create_command("t1"), create_command("t2", depends_on=("t1",)))
    assert second.waits_for == WaitsFor.DEPENDENCIES


def test_completion_unblocks_ready_dependents_in_the_same_batch() -> None:
    decider = new_decider(
        task_row(State.RUNNING), waiting("d1"), waiting("d2", 2), dependents=dependents({"t": ["d1", "d2"]})
    )
    decider.decide(complete_command())
    assert decided_events(decider) == [("task.completed", "t"), ("task.unblocked", "d1")]
    assert decider.batch.tasks[ZONE, "d2"].unmet_dependencies == 1
    assert decider.batch.dependencies.met == {((ZONE, "d1"), "t"), ((ZONE, "d2"), "t")}
    assert task_rules.claim_ids(decider, claim_command(5, token="k2")) == ["d1"]


def test_paused_dependent_is_unblocked_and_stays_paused() -> None:
    decider = new_decider(
        task_row(State.RUNNING),
        task_row(State.PAUSED, "d", dependency_count=1, unmet_dependencies=1),
        dependents=dependents({"t": ["d"]}),
    )
    decider.decide(complete_command())
    after = decider.batch.tasks[ZONE, "d"]
    assert (after.status, after.unmet_dependencies) == (State.PAUSED, 0)


def test_unblocked_task_still_waits_for_its_run_time() -> None:
    delayed = waiting("d", available_at=NOW + 1_000)
    decider = new_decider(task_row(State.RUNNING), delayed, dependents=dependents({"t": ["d"]}))
    decider.decide(complete_command())
    assert decider.batch.tasks[ZONE, "d"].waits_for == WaitsFor.TIME


def test_final_failure_fails_dependents_and_marks_theirs_as_pending() -> None:
    decider = new_decider(failed(), waiting("d"), dependents=dependents({"t": ["d"]}))
    assert require_task(decider.decide(unblock_command())).dependents_pending == 0
    after = decider.batch.tasks[ZONE, "d"]
    assert (after.status, after.reason, after.final, after.dependents_pending) == (
        State.FAILED,
        "dependency_failed",
        1,
        1,
    )
    assert decided_events(decider) == [("task.failed", "d")]
    assert "'t'" in str(decider.batch.content.updates[ZONE, "d"].last_error)


def test_dependent_set_to_run_becomes_ready_after_a_failed_dependency() -> None:
    decider = new_decider(failed(), waiting("d", on_dependency_failure="run"), dependents=dependents({"t": ["d"]}))
    decider.decide(unblock_command())
    assert (decider.batch.tasks[ZONE, "d"].status, decider.batch.tasks[ZONE, "d"].waits_for) == READY


def test_truncated_dependents_are_left_to_the_next_batch() -> None:
    decider = new_decider(
        task_row(State.RUNNING), waiting("d"), dependents=dependents({"t": ["d"]}), dependents_truncated=True
    )
    assert require_task(decider.decide(complete_command())).dependents_pending == 1
    next_batch = new_decider(decider.batch.tasks[ZONE, "t"], waiting("e"), dependents=dependents({"t": ["e"]}))
    assert require_task(next_batch.decide(unblock_command())).dependents_pending == 0
    assert (next_batch.batch.tasks[ZONE, "e"].status, next_batch.batch.tasks[ZONE, "e"].waits_for) == READY


def test_retryable_failure_does_not_affect_dependents() -> None:
    decider = new_decider(task_row(State.FAILED), waiting("d"), dependents=dependents({"t": ["d"]}))
    decider.decide(unblock_command())
    assert not decider.batch.tasks.events


def test_canceled_task_fails_its_dependents() -> None:
    decider = new_decider(task_row(), waiting("d"), dependents=dependents({"t": ["d"]}))
    decider.decide(Cancel(zone_id=ZONE, caller=CREATOR, id="t", reason="r"))
    decider.decide(unblock_command())
    assert decider.batch.tasks[ZONE, "d"].status is State.FAILED


def test_manual_retry_waits_again_for_unfinished_dependencies() -> None:
    failed_task = task_row(State.FAILED, final=1, reason="dependency_failed", dependency_count=2)
    retry = Retry(zone_id=ZONE, caller=CREATOR, id="t")
    dependencies = {(ZONE, "t"): ["a", "b"]}
    decider = new_decider(
        failed_task, task_row(State.PENDING, "a"), task_row(State.COMPLETED, "b"), dependencies=dependencies
    )
    assert (require_task(decider.decide(retry)).waits_for, decider.batch.dependencies.reopened) == (
        WaitsFor.DEPENDENCIES,
        {((ZONE, "t"), "a")},
    )
    assert (
        require_code(
            new_decider(failed_task, failed("a"), task_row(State.COMPLETED, "b"), dependencies=dependencies).decide(
                retry
            )
        )
        == "task_state_conflict"
    )


def test_patch_that_closes_a_cycle_is_refused_with_the_cycle() -> None:
    dependencies = {(ZONE, "b"): ["c"], (ZONE, "c"): ["t"]}
    decider = new_decider(task_row(), waiting("b"), waiting("c"), dependencies=dependencies)
    refusal = decider.decide(patch_command(["b"]))
    assert require_code(refusal) == "dependency_cycle"
    assert getattr(refusal, "members", {})["cycle"] == ["t", "b", "c", "t"]
    assert not decider.batch.tasks.updates()
    assert require_code(new_decider(task_row()).decide(patch_command(["t"]))) == "dependency_cycle"


def test_two_patches_of_one_batch_cannot_close_a_cycle() -> None:
    decider = new_decider(task_row(task_id="a"), task_row(task_id="b"))
    require_task(decider.decide(patch_command(["b"], "a")))
    assert require_code(decider.decide(patch_command(["a"], "b"))) == "dependency_cycle"


def test_dependencies_can_change_only_before_the_task_starts() -> None:
    for status in (State.RUNNING, State.FAILED, State.COMPLETED):
        assert (
            require_code(new_decider(task_row(status), task_row(task_id="a")).decide(patch_command(["a"])))
            == "task_state_conflict"
        )


def test_fail_for_cycle_fails_only_a_waiting_task() -> None:
    decider = new_decider(waiting("t"))
    after = require_task(decider.decide(FailForCycle(zone_id=ZONE, id="t", cycle=("t", "u", "t"))))
    assert (after.status, after.reason) == (State.FAILED, "dependency_cycle")
    assert decider.batch.tasks.events[0].data["cycle"] == ["t", "u", "t"]
    assert (
        require_task(new_decider(task_row()).decide(FailForCycle(zone_id=ZONE, id="t", cycle=("t", "t")))).status
        is State.PENDING
    )


# -- the graph ---------------------------------------------------------------------------------------------------

GRAPHS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.sampled_from("abcdefgh"), max_size=4, unique=True), max_size=8
)


@given(GRAPHS)
def test_find_cycle_returns_a_real_cycle_exactly_if_one_exists(graph: dict[str, list[str]]) -> None:
    for name in graph:
        cycle = find_cycle(name, graph)
        reached: set[str] = set()
        pending = [*graph[name]]
        while pending:
            current = pending.pop()
            if current not in reached:
                reached.add(current)
                pending += graph.get(current, [])
        assert (cycle is not None) == (name in reached)
        if cycle is not None:
            assert cycle[0] == cycle[-1] == name
            assert all(after in graph[before] for before, after in pairwise(cycle))


@given(GRAPHS)
def test_order_by_dependencies_returns_every_task_in_order_or_with_its_cycle(graph: dict[str, list[str]]) -> None:
    order, cycles = order_by_dependencies(graph)
    assert sorted([*order, *cycles]) == sorted(graph)
    assert set(cycles) == find_stuck_tasks(graph)
    for index, name in enumerate(order):
        assert all(dependency not in graph or dependency in order[:index] for dependency in graph[name])
    for cycle in cycles.values():
        assert cycle[0] == cycle[-1]
        assert all(after in graph[before] for before, after in pairwise(cycle))


def test_chain_of_ten_thousand_tasks_needs_no_recursion() -> None:
    chain = {str(n): [str(n + 1)] for n in range(10_000)}
    assert find_cycle("0", chain) is None
    cycle = find_cycle("0", chain | {"9999": ["0"]})
    assert cycle is not None
    assert len(cycle) == 10_001
    assert find_stuck_tasks(chain | {"9999": ["0"]}) == set(chain)


def test_independent_tasks_keep_the_order_of_the_request() -> None:
    assert order_by_dependencies({"c": [], "a": ["c"], "b": []})[0] == ["c", "b", "a"]


def test_duplicate_dependent_is_counted_down_once() -> None:
    decider = new_decider(task_row(State.RUNNING), waiting("d", 2), dependents=dependents({"t": ["d", "d"]}))
    decider.decide(complete_command())
    assert decider.batch.tasks[ZONE, "d"].unmet_dependencies == 1
    assert msgspec.structs.asdict(decider.batch.tasks[ZONE, "d"])["waits_for"] == WaitsFor.DEPENDENCIES
