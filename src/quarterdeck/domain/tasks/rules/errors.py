"""What can be refused about tasks, each with the sentence its caller is told."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound, Problem, TooLarge
from quarterdeck.domain.tasks.model.rows import State, Task

CYCLE_TEXT_MAX = 20
"""Names of a cycle that are spelt out."""
CYCLE_MAX = 1_000
REASON_MAX = 200
"""Characters of the reason that somebody gave for canceling."""


def task_not_found(task_id: str) -> NotFound:
    return NotFound("task_not_found", f"There is no task {task_id!r}.")


def agent_not_found(agent_id: str) -> NotFound:
    return NotFound("agent_not_found", f"There is no agent {agent_id!r}.")


def wrong_agent(agent_id: str) -> Forbidden:
    return Forbidden("agent_required", f"Only the agent {agent_id!r} itself may do this.")


def task_exists(task_id: str) -> Conflict:
    return Conflict("task_exists", f"There is a task {task_id!r} already.")


def response_too_large(task_id: str) -> TooLarge:
    return TooLarge(
        "answer_too_large",
        f"The task {task_id!r} was made before, and the answer has no room left to show it: ask for it by its id.",
        taskId=task_id,
    )


def unknown_dependency(task_id: str) -> Invalid:
    return Invalid("unknown_dependency", f"It depends on {task_id!r}, which does not exist.", field="dependsOn")


def failed_dependency(task_id: str) -> Conflict:
    return Conflict("dependency_failed", f"It would depend on {task_id!r}, which has failed or was canceled.")


def format_cycle(cycle: Sequence[str]) -> str:
    return " → ".join(cycle if len(cycle) <= CYCLE_TEXT_MAX else [*cycle[: CYCLE_TEXT_MAX - 2], "…", cycle[-1]])


def dependency_cycle(path: Sequence[str]) -> Conflict:
    members = [*path[:CYCLE_MAX]]
    return Conflict("dependency_cycle", f"These tasks would wait for each other: {format_cycle(path)}.", cycle=members)


def state_conflict(task: Task, verb: str, reason: str) -> Problem:
    return Conflict("task_state_conflict", f"The task cannot be {verb}: {reason}.", taskStatus=str(task.status))


def token_required() -> Conflict:
    return Conflict("attempt_token_required", "This needs the attemptToken that came with the task.")


def _why_ended(task: Task) -> str:
    """Why an attempt is over, by how its task stands since."""
    how_lost = "it was given back, or taken from its agent, or that was too long silent"
    match task.status:
        case State.ASSIGNED | State.RUNNING:
            return f"{how_lost}, and another has begun"
        case State.ABORTED if task.final:
            return f"the task was canceled ({(task.reason or '')[:REASON_MAX]})"
        case State.ABORTED:
            return f"it was aborted ({task.reason}), and another follows"
        case State.PENDING:
            return f"{how_lost}, and the task waits for another"
        case State.PAUSED | State.COMPLETED | State.FAILED | State.ARCHIVED:
            return f"the task is {task.status}"


def stale_attempt(task: Task) -> Conflict:
    return Conflict(
        "stale_attempt",
        f"This attempt is over: {_why_ended(task)}. What was said of it was not kept.",
        taskStatus=str(task.status),
        attempt=task.attempt,
    )


def already_started(task_id: str) -> Conflict:
    return Conflict("task_state_conflict", f"What {task_id!r} depends on can be changed only before it has begun.")
