"""Problems that task commands return. Codes and members are public: clients depend on them."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound, Problem, TooLarge
from quarterdeck.domain.tasks.model.rows import State, Task

CYCLE_TEXT_MAX = 20
"""Maximum number of task ids when a cycle is written out in a message."""
CYCLE_MAX = 1_000
"""Maximum number of task ids in the member `cycle`."""
REASON_MAX = 200
"""Maximum length of a cancel reason in an error message."""


def task_not_found(task_id: str) -> NotFound:
    return NotFound("task_not_found", f"Task {task_id!r} does not exist in this zone.")


def agent_not_found(agent_id: str) -> NotFound:
    return NotFound("agent_not_found", f"Agent {agent_id!r} is not registered in this zone.")


def wrong_agent(agent_id: str) -> Forbidden:
    return Forbidden(
        "agent_required", f"This token belongs to another agent. Claim with a token of agent {agent_id!r}."
    )


def task_exists(task_id: str) -> Conflict:
    return Conflict("task_exists", f"Task id {task_id!r} is already in use. Omit `id` to get a new one.")


def response_too_large(task_id: str) -> TooLarge:
    return TooLarge(
        "answer_too_large",
        f"Task {task_id!r} already exists, and the response is too large to include it. Read it by its id.",
        taskId=task_id,
    )


def unknown_dependency(task_id: str) -> Invalid:
    detail = f"`dependsOn` names task {task_id!r}, which does not exist in this zone."
    return Invalid("unknown_dependency", detail, field="dependsOn")


def failed_dependency(task_id: str) -> Conflict:
    return Conflict("dependency_failed", f"`dependsOn` names task {task_id!r}, which has failed or was canceled.")


def format_cycle(cycle: Sequence[str]) -> str:
    return " → ".join(cycle if len(cycle) <= CYCLE_TEXT_MAX else [*cycle[: CYCLE_TEXT_MAX - 2], "…", cycle[-1]])


def dependency_cycle(path: Sequence[str]) -> Conflict:
    members = [*path[:CYCLE_MAX]]
    return Conflict("dependency_cycle", f"`dependsOn` would form a cycle: {format_cycle(path)}.", cycle=members)


def state_conflict(task: Task, verb: str, reason: str) -> Problem:
    return Conflict("task_state_conflict", f"The task cannot be {verb}: {reason}.", taskStatus=str(task.status))


def token_required() -> Conflict:
    return Conflict("attempt_token_required", "Send the `attemptToken` that the claim returned.")


def _why_ended(task: Task) -> str:
    match task.status:
        case State.ASSIGNED | State.RUNNING:
            return "another attempt is running"
        case State.ABORTED if task.final:
            return f"the task was canceled ({(task.reason or '')[:REASON_MAX]})"
        case State.ABORTED:
            return f"it was aborted ({task.reason}) and the task will be retried"
        case State.PENDING:
            return "the task is PENDING and waiting for its next attempt"
        case State.PAUSED | State.COMPLETED | State.FAILED | State.ARCHIVED:
            return f"the task is {task.status}"


def stale_attempt(task: Task) -> Conflict:
    return Conflict(
        "stale_attempt",
        f"This attempt has ended: {_why_ended(task)}. The report was ignored.",
        taskStatus=str(task.status),
        attempt=task.attempt,
    )


def already_started(task_id: str) -> Conflict:
    return Conflict(
        "task_state_conflict", f"The dependencies of task {task_id!r} can only be changed before its first attempt."
    )
