"""Why a task is as it is: every state has a reason, and says what would move it."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.domain.tasks.model.cost_types import Budget, Period, Scope
from quarterdeck.domain.tasks.model.explain_types import (
    Candidate,
    ExplainInput,
    Holder,
    TaskExplanation,
    UnmetDependency,
)
from quarterdeck.domain.tasks.model.rows import State, Task, WaitsFor
from quarterdeck.domain.tasks.rules import explain, states
from quarterdeck.domain.tasks.rules.budgets import to_spent_view
from tests.support.builders import NOW, ZONE
from tests.support.structs import build_struct
from tests.support.task_rules import TIMEOUTS, task_row


def explained(task: Task, **facts: object) -> TaskExplanation:
    plain: dict[str, object] = {"title": "a task", "last_error": None, "required_capabilities": frozenset(), "now": NOW}
    return explain.explain(build_struct(ExplainInput, task=task, **(plain | facts)))


def candidate(*capabilities: str, free: int = 1, lives: bool = True) -> Candidate:
    return Candidate("a", frozenset(capabilities), free, lives)


@pytest.mark.parametrize("status", [*State])
def test_every_state_is_explained(status: State) -> None:
    told = explained(task_row(status))
    assert told.task.status is status
    assert told.why
    assert all(said.endswith(".") for said in [*told.why, *told.next])


def test_a_task_that_waits_for_others_names_them() -> None:
    waiting = task_row(waits_for=WaitsFor.DEPENDENCIES, unmet_dependencies=12, dependency_count=12)
    ahead = tuple(UnmetDependency(f"d{n}", "first", State.RUNNING, 0, "x", 0, 0) for n in range(10))
    told = explained(waiting, dependencies=ahead)
    assert (told.code, told.unmet, len(told.waits_for)) == ("dependencies", 12, 10)
    assert "'d0' (RUNNING by x)" in told.why[0]
    assert "7 more" in told.why[0]
    assert "fails with it" in told.next[1]
    goes_on = explained(msgspec.structs.replace(waiting, on_dependency_failure="run"), dependencies=ahead)
    assert "without it" in goes_on.next[1]


def test_a_task_whose_moment_has_not_come_says_when_it_does() -> None:
    told = explained(task_row(waits_for=WaitsFor.TIME, available_at=NOW + 60_000))
    assert (told.code, told.until) == ("moment", "1970-01-12T13:47:40.000Z")


def test_a_task_that_backs_off_says_of_which_attempt_and_until_when() -> None:
    told = explained(task_row(State.FAILED), last_error="broken")
    assert told.code == "backoff"
    assert told.until is not None
    assert "Attempt 1 failed" in told.why[0]
    assert "retry 1 of 2" in told.why[1]
    assert "broken" in told.why[2]


def test_a_task_whose_budget_is_spent_waits_for_that_whoever_is_free() -> None:
    budget = Budget(ZONE, Scope.ZONE, "", Period.DAY, 5, None, 0, 86_400_000, 7, 0, "x", 1, 1)
    told = explained(task_row(), spent_budget=to_spent_view(budget), candidates=(candidate(),))
    assert (told.code, told.budget is not None, told.until) == ("budget_spent", True, "1970-01-02T00:00:00.000Z")


@pytest.mark.parametrize(
    ("candidates", "code", "missing", "suited", "free"),
    [
        ((), "no_agent", ["go", "rust"], 0, 0),
        ((candidate("rust"),), "no_agent", ["go"], 0, 0),
        ((candidate("rust"), candidate("go")), "no_agent", [], 0, 0),
        ((candidate("rust", "go", lives=False),), "no_agent", ["go", "rust"], 0, 0),
        ((candidate("rust", "go", free=0),), "agents_busy", [], 1, 0),
        ((candidate("rust", "go"), candidate("rust", "go", free=0)), "turn", [], 2, 1),
    ],
)
def test_a_task_that_waits_for_an_agent_says_who_could_take_it(
    candidates: tuple[Candidate, ...], code: str, missing: list[str], suited: int, free: int
) -> None:
    told = explained(
        task_row(), required_capabilities=frozenset({"rust", "go"}), candidates=candidates, ranked_before=3
    )
    assert told.agents is not None
    assert (told.code, told.agents.missing_capabilities) == (code, missing)
    assert (told.agents.suited, told.agents.free, told.before) == (suited, free, 3)


def test_a_task_that_somebody_has_says_who_since_when_and_until_when() -> None:
    late = task_row(
        State.RUNNING, estimated_completion_at=NOW - 1, warned_at=NOW - 1, overdue_at=NOW + 9, timeout_at=NOW + 8
    )
    told = explained(late, holder=Holder("a", NOW - 5, NOW + 100))
    assert told.holder is not None
    assert (told.code, told.holder.agent_id, told.holder.is_overdue) == ("running", "a", True)
    assert any("overdue" in said and "warned" in said for said in told.why)
    assert len(told.next) == 4
    unknown = explained(task_row(State.ASSIGNED))
    assert unknown.code == "assigned"
    assert any("not known any more" in said for said in unknown.next)


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (states.fail_dependency(task_row(), states.DEPENDENCY_FAILED, NOW), "depends on"),
        (states.fail_dependency(task_row(), states.DEPENDENCY_CYCLE, NOW), "waited for itself"),
        (states.cancel(task_row(), "no more", NOW), "no more"),
        (
            states.fail(task_row(State.RUNNING, retry_count=2), State.FAILED, states.Failure("failed", 0.0), 1, NOW),
            "no retries are left",
        ),
        (
            states.fail(
                task_row(State.RUNNING), State.FAILED, states.Failure("failed", 0.0, False), TIMEOUTS.hung_ms, NOW
            ),
            "must not be tried again",
        ),
    ],
)
def test_a_task_that_is_over_for_good_says_why(ended: Task, says: str) -> None:
    told = explained(ended)
    assert says in told.why[0]
    assert "Retrying" in told.next[0]
