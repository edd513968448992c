"""Types for `explain` (why a task is in its state) and for the dependency tree."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.clock import Millis
from quarterdeck.domain.costs.model import SpentBudgetView
from quarterdeck.domain.tasks.model.rows import State, Task

NODES_MAX = 1_000
DEPTH_MAX = 100


# -- dependency tree ---------------------------------------------------------------------------------------------


class TreeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    depth: Annotated[
        int, Meta(ge=1, le=DEPTH_MAX, description="maximum distance from the task, in both directions")
    ] = 25


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A row of the statement `tasks_nodes`, in column order."""

    id: str
    title: str
    task_type: str
    status: State
    progress_percent: int
    final: int


class NodeView(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    title: str
    task_type: str
    status: State
    progress_percent: int
    is_final: bool
    depth: Annotated[int, Meta(description="negative: a dependency; positive: a dependent; 0: the task itself")]
    depends_on: Annotated[list[str], Meta(description="dependencies that are in this tree")]


class TaskTree(msgspec.Struct, frozen=True):
    """A task with its direct and indirect dependencies and dependents."""

    items: list[NodeView]
    truncated: Annotated[bool, Meta(description="whether the tree leaves out dependencies or dependents")]


# -- explanation -------------------------------------------------------------------------------------------------


class UnmetDependency(msgspec.Struct, frozen=True, array_like=True):
    """A row of the statement `task_dependencies_unmet`, in column order."""

    id: str
    title: str
    status: State
    final: int
    agent_id: str | None
    waits_for: int
    available_at: Millis


class Candidate(msgspec.Struct, frozen=True):
    """The properties of an agent that determine whether it can take a task."""

    id: str
    capabilities: frozenset[str]
    free_slots: int
    accepts_tasks: bool


class Holder(msgspec.Struct, frozen=True):
    id: str
    last_seen_at: Millis
    lease_expires_at: Millis


class ExplainInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of `rules.explain`. The optional fields are loaded only for the task states that need them."""

    task: Task
    title: str
    last_error: str | None
    required_capabilities: frozenset[str]
    now: Millis
    dependencies: tuple[UnmetDependency, ...] = ()
    """The first unmet dependencies, ordered by id."""
    candidates: tuple[Candidate, ...] = ()
    ranked_before: int = 0
    """Ready tasks of the same class that are claimed before this one, counted up to 1,000."""
    spent_budget: SpentBudgetView | None = None
    holder: Holder | None = None


class ExplainedTask(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    title: str
    task_type: str
    status: State
    priority: int
    attempt: int
    retry_count: int
    max_retries: int
    reason: str | None
    last_error: str | None


class DependencyView(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    title: str
    status: State
    is_final: bool


class AgentsView(msgspec.Struct, frozen=True, rename="camel"):
    """Agents that could take the task."""

    required_capabilities: list[str]
    missing_capabilities: Annotated[list[str], Meta(description="capabilities that no agent that accepts tasks has")]
    suited: Annotated[int, Meta(description="agents that accept tasks and have all required capabilities")]
    free: Annotated[int, Meta(description="suited agents with a free slot")]


class HolderView(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str
    since: str | None
    last_seen_at: str | None
    lease_expires_at: str | None
    timeout_at: str | None
    estimated_completion_at: str | None
    is_overdue: bool


class TaskExplanation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why a task is in its state, and what would change it."""

    task: ExplainedTask
    code: Annotated[
        str,
        Meta(
            description="one of dependencies, moment, backoff, budget_spent, no_agent, agents_busy, turn, assigned, "
            "running, paused, completed, failed, aborted, archived"
        ),
    ]
    why: Annotated[list[str], Meta(description="reasons as sentences, the most important first")]
    next: Annotated[list[str], Meta(description="what would change the state")]
    until: Annotated[str | None, Meta(description="time from which the task can be claimed, if known")] = None
    unmet: Annotated[int, Meta(description="number of unmet dependencies")] = 0
    waits_for: Annotated[list[DependencyView], Meta(description="the first unmet dependencies")] = []
    before: Annotated[
        int,
        Meta(
            description="ready tasks with the same type and required capabilities that are claimed before this one, "
            "counted up to 1,000"
        ),
    ] = 0
    agents: AgentsView | None = None
    budget: SpentBudgetView | None = None
    holder: HolderView | None = None
