"""Explanations of a task: the reason of its state, and what would change it."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.domain.costs.model import Budget, Period, Scope
from quarterdeck.domain.costs.rules import to_spent_view
from quarterdeck.domain.tasks.model.explain_types import (
    Candidate,
    ExplainInput,
    Holder,
    TaskExplanation,
    UnmetDependency,
)
from quarterdeck.domain.tasks.model.rows import State, Task, Verb, WaitsFor
from quarterdeck.domain.tasks.rules import explain, states
from tests.support.builders import NOW, ZONE
from tests.support.structs import build_struct
from tests.support.task_rules import TIMEOUTS, task_row


def explain_task(task: Task, **fields: object) -> TaskExplanation:
    defaults: dict[str, object] = {
        "title": "a task",
        "last_error": None,
        "required_capabilities": frozenset(),
        "now": NOW,
    }
    return explain.explain(build_struct(ExplainInput, task=task, **(defaults | fields)))


def candidate(*capabilities: str, free: int = 1, accepts_tasks: bool = True) -> Candidate:
    return Candidate("a", frozenset(capabilities), free, accepts_tasks)


@pytest.mark.parametrize("status", [*State])
def test_every_state_is_explained(status: State) -> None:
    explanation = explain_task(task_row(status))
    assert explanation.task.status is status
    assert explanation.why
    assert all(sentence.endswith(".") for sentence in [*explanation.why, *explanation.next])


def test_task_waiting_for_dependencies_names_them() -> None:
    waiting = task_row(waits_for=WaitsFor.DEPENDENCIES, unmet_dependencies=12, dependency_count=12)
    dependencies = tuple(UnmetDependency(f"d{n}", "first", State.RUNNING, 0, "x", 0, 0) for n in range(10))
    explanation = explain_task(waiting, dependencies=dependencies)
    assert (explanation.code, explanation.unmet, len(explanation.waits_for)) == ("dependencies", 12, 10)
    assert "'d0' (RUNNING by x)" in explanation.why[0]
    assert "7 more" in explanation.why[0]
    assert "fails too" in explanation.next[1]
    runs_anyway = explain_task(msgspec.structs.replace(waiting, on_dependency_failure="run"), dependencies=dependencies)
    assert "without it" in runs_anyway.next[1]


def test_delayed_task_names_its_run_time() -> None:
    explanation = explain_task(task_row(waits_for=WaitsFor.TIME, available_at=NOW + 60_000))
    assert (explanation.code, explanation.until) == ("moment", "1970-01-12T13:47:40.000Z")


def test_task_in_backoff_names_the_attempt_and_the_retry_time() -> None:
    explanation = explain_task(task_row(State.FAILED), last_error="broken")
    assert explanation.code == "backoff"
    assert explanation.until is not None
    assert "Attempt 1 failed" in explanation.why[0]
    assert "retry 1 of 2" in explanation.why[1]
    assert "broken" in explanation.why[2]


def test_spent_budget_is_named_even_if_an_agent_is_free() -> None:
    budget = Budget(ZONE, Scope.ZONE, "", Period.DAY, 5, None, 0, 86_400_000, 7, 0, "x", 1, 1)
    explanation = explain_task(task_row(), spent_budget=to_spent_view(budget), candidates=(candidate(),))
    assert (explanation.code, explanation.budget is not None, explanation.until) == (
        "budget_spent",
        True,
        "1970-01-02T00:00:00.000Z",
    )


@pytest.mark.parametrize(
    ("candidates", "code", "missing", "suited", "free"),
    [
        ((), "no_agent", ["go", "rust"], 0, 0),
        ((candidate("rust"),), "no_agent", ["go"], 0, 0),
        ((candidate("rust"), candidate("go")), "no_agent", [], 0, 0),
        ((candidate("rust", "go", accepts_tasks=False),), "no_agent", ["go", "rust"], 0, 0),
        ((candidate("rust", "go", free=0),), "agents_busy", [], 1, 0),
        ((candidate("rust", "go"), candidate("rust", "go", free=0)), "turn", [], 2, 1),
    ],
)
def test_ready_task_names_missing_capabilities_and_suitable_agents(
    candidates: tuple[Candidate, ...], code: str, missing: list[str], suited: int, free: int
) -> None:
    explanation = explain_task(
        task_row(), required_capabilities=frozenset({"rust", "go"}), candidates=candidates, ranked_before=3
    )
    assert explanation.agents is not None
    assert (explanation.code, explanation.agents.missing_capabilities) == (code, missing)
    assert (explanation.agents.suited, explanation.agents.free, explanation.before) == (suited, free, 3)


def test_running_task_names_its_agent_and_deadlines() -> None:
    late = task_row(
        State.RUNNING, estimated_completion_at=NOW - 1, warned_at=NOW - 1, overdue_at=NOW + 9, timeout_at=NOW + 8
    )
    explanation = explain_task(late, holder=Holder("a", NOW - 5, NOW + 100))
    assert explanation.holder is not None
    assert (explanation.code, explanation.holder.agent_id, explanation.holder.is_overdue) == ("running", "a", True)
    assert any("overdue" in sentence and "warned" in sentence for sentence in explanation.why)
    assert len(explanation.next) == 4
    unknown = explain_task(task_row(State.ASSIGNED))
    assert unknown.code == "assigned"
    assert any("no longer exists" in sentence for sentence in unknown.next)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (states.fail_dependency(task_row(), states.DEPENDENCY_FAILED, NOW), "depends on"),
        (states.fail_dependency(task_row(), states.DEPENDENCY_CYCLE, NOW), "form a cycle"),
        (states.cancel(task_row(), "not needed", NOW), "not needed"),
        (
            states.fail(task_row(State.RUNNING, retry_count=2), Verb.FAIL, states.Failure("failed", 0.0), 1, NOW),
            "no retries are left",
        ),
        (
            states.fail(
                task_row(State.RUNNING), Verb.FAIL, states.Failure("failed", 0.0, False), TIMEOUTS.hung_ms, NOW
            ),
            "not retryable",
        ),
    ],
)
def test_finally_failed_task_names_the_reason_and_the_retry(ended: Task, expected: str) -> None:
    explanation = explain_task(ended)
    assert expected in explanation.why[0]
    assert "retries it" in explanation.next[0]
