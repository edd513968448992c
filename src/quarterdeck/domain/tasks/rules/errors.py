"""What can be refused about tasks, each with the sentence its caller is told."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound, Problem, TooLarge
from quarterdeck.domain.tasks.model.rows import State, Task

SHOWN_MAX = 20
"""Names of a cycle that are spelt out."""
CYCLE_MAX = 1_000
REASON_MAX = 200
"""Characters of the reason that somebody gave for canceling."""


def not_found(task_id: str) -> NotFound:
    return NotFound("task_not_found", f"There is no task {task_id!r}.")


def agent_not_found(agent_id: str) -> NotFound:
    return NotFound("agent_not_found", f"There is no agent {agent_id!r}.")


def other_agent(agent_id: str) -> Forbidden:
    return Forbidden("agent_required", f"Only the agent {agent_id!r} itself may do this.")


def id_taken(task_id: str) -> Conflict:
    return Conflict("task_exists", f"There is a task {task_id!r} already.")


def too_much_to_show(task_id: str) -> TooLarge:
    return TooLarge(
        "answer_too_large",
        f"The task {task_id!r} was made before, and the answer has no room left to show it: ask for it by its id.",
        taskId=task_id,
    )


def unknown_dependency(task_id: str) -> Invalid:
    return Invalid("unknown_dependency", f"It depends on {task_id!r}, which does not exist.", field="dependsOn")


def failed_dependency(task_id: str) -> Conflict:
    return Conflict("dependency_failed", f"It would depend on {task_id!r}, which has failed or was canceled.")


def shown(way: Sequence[str]) -> str:
    return " → ".join(way if len(way) <= SHOWN_MAX else [*way[: SHOWN_MAX - 2], "…", way[-1]])


def cycle(way: Sequence[str]) -> Conflict:
    told = [*way[:CYCLE_MAX]]
    return Conflict("dependency_cycle", f"These tasks would wait for each other: {shown(way)}.", cycle=told)


def not_movable(row: Task, verb: str, why: str) -> Problem:
    return Conflict("task_state_conflict", f"The task cannot be {verb}: {why}.", taskStatus=str(row.status))


def token_required() -> Conflict:
    return Conflict("attempt_token_required", "This needs the attemptToken that came with the task.")


def _ended(row: Task) -> str:
    """Why an attempt is over, by how its task stands since."""
    taken = "it was given back, or taken from its agent, or that was too long silent"
    match row.status:
        case State.ASSIGNED | State.RUNNING:
            return f"{taken}, and another has begun"
        case State.ABORTED if row.final:
            return f"the task was canceled ({(row.reason or '')[:REASON_MAX]})"
        case State.ABORTED:
            return f"it was aborted ({row.reason}), and another follows"
        case State.PENDING:
            return f"{taken}, and the task waits for another"
        case State.PAUSED | State.COMPLETED | State.FAILED | State.ARCHIVED:
            return f"the task is {row.status}"


def stale(row: Task) -> Conflict:
    return Conflict(
        "stale_attempt",
        f"This attempt is over: {_ended(row)}. What was said of it was not kept.",
        taskStatus=str(row.status),
        attempt=row.attempt,
    )


def has_begun(task_id: str) -> Conflict:
    return Conflict("task_state_conflict", f"What {task_id!r} depends on can be changed only before it has begun.")
