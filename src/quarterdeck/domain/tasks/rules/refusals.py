"""What can be refused about tasks, each with the sentence its caller is told."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound, Problem
from quarterdeck.domain.tasks.model.rows import Task

SHOWN_MAX = 20
"""Names of a cycle that are spelt out."""
CYCLE_MAX = 1_000


def not_found(task_id: str) -> NotFound:
    return NotFound("task_not_found", f"There is no task {task_id!r}.")


def agent_not_found(agent_id: str) -> NotFound:
    return NotFound("agent_not_found", f"There is no agent {agent_id!r}.")


def agent_terminated(agent_id: str) -> Conflict:
    return Conflict("agent_terminated", f"The agent {agent_id!r} was terminated and takes no tasks.")


def agent_draining(agent_id: str) -> Conflict:
    return Conflict(
        "agent_draining", f"The agent {agent_id!r} is to end when its last task has: it takes no others."
    )


def other_agent(agent_id: str) -> Forbidden:
    return Forbidden("agent_required", f"Only the agent {agent_id!r} itself may do this.")


def id_taken(task_id: str) -> Conflict:
    return Conflict("task_exists", f"There is a task {task_id!r} already.")


def unknown_dependency(task_id: str) -> Invalid:
    return Invalid(
        "unknown_dependency", f"It depends on {task_id!r}, which does not exist.", field="dependsOn"
    )


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


def stale(row: Task) -> Conflict:
    return Conflict(
        "stale_attempt",
        "This attempt is over: its agent was too long silent, or the task was taken from it. Nothing was changed.",
        taskStatus=str(row.status),
        attempt=row.attempt,
    )


def has_begun(task_id: str) -> Conflict:
    return Conflict(
        "task_state_conflict", f"What {task_id!r} depends on can be changed only before it has begun."
    )
