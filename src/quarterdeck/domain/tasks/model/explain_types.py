"""Why a task is as it is, and what it hangs together with."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.clock import Millis
from quarterdeck.domain.tasks.model.cost_types import SpentBudgetView
from quarterdeck.domain.tasks.model.rows import State, Task

NODES_MAX = 1_000
DEPTH_MAX = 100


# -- the tree ----------------------------------------------------------------------------------------------------


class TreeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    depth: Annotated[int, Meta(ge=1, le=DEPTH_MAX, description="how far to go, either way")] = 25


class Node(msgspec.Struct, frozen=True, array_like=True):
    """In the order of `tasks_nodes`."""

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
    depth: Annotated[int, Meta(description="below 0: it is waited for; above: it waits; the task itself is 0")]
    depends_on: Annotated[list[str], Meta(description="of those in this tree")]


class TaskTree(msgspec.Struct, frozen=True):
    """The task, what it depends on and what depends on it, directly or not."""

    items: list[NodeView]
    truncated: Annotated[bool, Meta(description="there are more: what is farther away was left out")]


# -- the explanation ---------------------------------------------------------------------------------------------


class UnmetDependency(msgspec.Struct, frozen=True, array_like=True):
    """A task that is waited for, in the order of `task_dependencies_unmet`."""

    id: str
    title: str
    status: State
    final: int
    agent_id: str | None
    waits_for: int
    available_at: Millis


class Candidate(msgspec.Struct, frozen=True):
    """What of an agent decides whether it could take a task."""

    id: str
    capabilities: frozenset[str]
    free_slots: int
    is_live: bool


class Holder(msgspec.Struct, frozen=True):
    id: str
    last_seen_at: Millis
    lease_expires_at: Millis


class ExplainInput(msgspec.Struct, frozen=True, kw_only=True):
    """What an explanation is made from."""

    task: Task
    title: str
    last_error: str | None
    required_capabilities: frozenset[str]
    now: Millis
    dependencies: tuple[UnmetDependency, ...] = ()
    """Of those it waits for, the first."""
    candidates: tuple[Candidate, ...] = ()
    ranked_before: int = 0
    """Tasks of its class whose turn comes first."""
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
    """Who could take it."""

    required_capabilities: list[str]
    missing_capabilities: Annotated[list[str], Meta(description="that no live agent has")]
    suited: Annotated[int, Meta(description="live agents that have all of them")]
    free: Annotated[int, Meta(description="of those, the ones that may take another task")]


class HolderView(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str
    since: str | None
    last_seen_at: str | None
    lease_expires_at: str | None
    timeout_at: str | None
    estimated_completion_at: str | None
    is_overdue: bool


class TaskExplanation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why a task is in the state it is in, and what would move it."""

    task: ExplainedTask
    code: Annotated[
        str,
        Meta(
            description="dependencies, moment, backoff, budget_spent, no_agent, agents_busy, turn, running, paused, "
            "completed, failed, aborted, archived"
        ),
    ]
    why: Annotated[list[str], Meta(description="sentences, the most telling first")]
    next: Annotated[list[str], Meta(description="what would move it")]
    until: Annotated[str | None, Meta(description="when it moves by itself, if it does")] = None
    unmet: Annotated[int, Meta(description="tasks it waits for")] = 0
    waits_for: Annotated[list[DependencyView], Meta(description="the first of those")] = []
    before: Annotated[int, Meta(description="tasks of its kind whose turn comes first, counted to 1,000")] = 0
    agents: AgentsView | None = None
    budget: SpentBudgetView | None = None
    holder: HolderView | None = None
