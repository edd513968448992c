"""The input of a batch, loaded while its zones are locked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.command import Command
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.domain.tasks.model.rows import AgentRef, State, Strategy, Task, TaskRef

ClassRef = tuple[str, str]
"""(zone id, class id)"""


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """The properties of an agent that claims and assignments depend on."""

    capabilities: frozenset[str]
    free_slots: int
    lease_expires_at: Millis
    """When the agent becomes stale if it makes no further contact."""
    problem: Problem | None = None
    """The error for claims by this agent; None if it may receive tasks."""
    is_stale: bool = False
    """A stale agent is not assigned tasks until it makes contact."""
    seen_recently: bool = False
    """`last_seen_at` is so recent that it need not be written again."""
    is_new: bool = False
    """The agent has never made contact, so its liveness is not checked yet."""


@dataclass(frozen=True, slots=True)
class TaskClass:
    """Tasks with the same type and required capabilities. Ready tasks are queued by class."""

    task_type: str
    capabilities: frozenset[str]

    def matches(self, capabilities: frozenset[str], task_types: frozenset[str] | None) -> bool:
        return self.capabilities <= capabilities and (task_types is None or self.task_type in task_types)


class DependencyState(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a task that its dependents need."""

    zone_id: str
    id: str
    status: State
    final: int
    completed_at: Millis | None


@dataclass(frozen=True, slots=True)
class Timeouts:
    backoff_max_ms: Millis
    overdue_ms: Millis
    """How far an attempt may exceed its estimate before its agent is warned."""
    hung_ms: Millis
    """How long after that warning an attempt without progress is aborted."""


@dataclass(frozen=True, slots=True)
class BatchInput:
    now: Millis
    timeouts: Timeouts
    permission_problem: Callable[[Command, str], Problem | None]
    """The error if the role of a command's caller does not allow a permission, or None."""
    zone_problems: Mapping[str, Problem | None] = field(default_factory=dict)
    """Locked zone → the error if no work may start in it, or None."""
    tasks: Iterable[Task] = ()
    """Tasks that the batch refers to by id, idempotency key or claim, and dependents of tasks that may end."""
    dependency_states: Iterable[DependencyState] = ()
    """States of the dependencies of new, changed and retried tasks."""
    keys: Mapping[Key, KeyRecord] = field(default_factory=dict)
    agents: Mapping[AgentRef, AgentInfo] = field(default_factory=dict)
    classes: Mapping[ClassRef, TaskClass] = field(default_factory=dict)
    ready_tasks: Sequence[Task] = ()
    """Ready tasks that the claims of the batch may take, by rank within each class."""
    content_sizes: Mapping[TaskRef, int] = field(default_factory=dict)
    """Content size, in bytes, of each task that may be claimed."""
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    fair_ranks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(zone, creator) → rank of the creator's newest task; (zone, "") → highest rank claimed. Only under `fair`."""
    dependents: Mapping[TaskRef, Sequence[TaskRef]] = field(default_factory=dict)
    """Task that may end in this batch → tasks that are waiting for it."""
    dependents_truncated: bool = False
    """More dependents exist than were loaded. A later batch unblocks those."""
    dependencies: Mapping[TaskRef, Sequence[str]] = field(default_factory=dict)
    """Dependencies of retried tasks; for tasks whose dependencies are replaced, the closure of the new ones."""
    tags: Mapping[TaskRef, Sequence[str]] = field(default_factory=dict)
    """Current tags of tasks whose tags are being replaced."""
    is_over_budget: Callable[[Task], bool] = lambda task: False
    """Whether a budget against which the task's costs count is spent."""
