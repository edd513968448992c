"""What was loaded for a batch, and what is told of it: the board's input and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.domain.tasks.model.commands import BaseCommand
from quarterdeck.domain.tasks.model.rows import AgentRef, State, Strategy, Task, TaskRef

ClassRef = tuple[str, str]
"""(zone, class)"""


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What of an agent decides."""

    capabilities: frozenset[str]
    free_slots: int
    """How many tasks it may still be given."""
    lease_expires_at: Millis
    """Until when it is believed to live if nothing more is heard of it."""
    problem: Problem | None = None
    """Why it may be given none."""
    is_stale: bool = False
    """It was found silent: nothing is given to it before it speaks."""
    seen_recently: bool = False
    """So lately that it need not be written down that it is there."""
    is_new: bool = False
    """It has never spoken: nobody looks yet whether it is there."""


@dataclass(frozen=True, slots=True)
class TaskClass:
    """A class of tasks: those that ask the same of whoever takes them."""

    task_type: str
    capabilities: frozenset[str]

    def matches(self, capabilities: frozenset[str], task_types: frozenset[str] | None) -> bool:
        """Whether one who has these capabilities, and wants these types, may take what is of this kind."""
        return self.capabilities <= capabilities and (task_types is None or self.task_type in task_types)


class DependencyState(msgspec.Struct, frozen=True, array_like=True):
    """What of a task matters to those that depend on it."""

    zone_id: str
    id: str
    status: State
    final: int
    completed_at: Millis | None

    @property
    def has_failed(self) -> bool:
        return bool(self.final)

    @property
    def is_completed(self) -> bool:
        return self.completed_at is not None


def to_dependency_state(task: Task) -> DependencyState:
    return DependencyState(task.zone_id, task.id, task.status, task.final, task.completed_at)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long things may take."""

    backoff_max_ms: Millis
    overdue_ms: Millis
    hung_ms: Millis


@dataclass(frozen=True, slots=True)
class BatchInput:
    """What was loaded under the zones' locks."""

    now: Millis
    timeouts: Timeouts
    permission_problem: Callable[[BaseCommand, str], Problem | None]
    """Why a caller may not use a power, by what is known of it: its session, its agent, its role."""
    zone_problems: Mapping[str, Problem | None] = field(default_factory=dict)
    """The zones that were locked, and why nothing can begin in them any more, if so."""
    tasks: Iterable[Task] = ()
    """Whatever is named: by its id, its key, the claim that holds it, or what it depends on."""
    dependency_states: Iterable[DependencyState] = ()
    """Of those that something is to depend on."""
    keys: Mapping[Key, KeyRecord] = field(default_factory=dict)
    agents: Mapping[AgentRef, AgentInfo] = field(default_factory=dict)
    classes: Mapping[ClassRef, TaskClass] = field(default_factory=dict)
    ready: Sequence[Task] = ()
    """What may begin, in the order of turns."""
    content_sizes: Mapping[TaskRef, int] = field(default_factory=dict)
    """Of what may be given out, how many bytes it says."""
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    fair_ranks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(zone, creator) → its last turn, and (zone, "") → the turn that was last served, where turns are fair"""
    dependents: Mapping[TaskRef, Sequence[TaskRef]] = field(default_factory=dict)
    """Of what may end in this batch, those that still wait for it."""
    dependents_truncated: bool = False
    """There may be more of those than were loaded."""
    dependencies: Mapping[TaskRef, Sequence[str]] = field(default_factory=dict)
    """What each depends on, as far as the way ahead of those whose dependencies change."""
    tags: Mapping[TaskRef, Sequence[str]] = field(default_factory=dict)
    """Of those whose tags are replaced."""
    over_budget: Callable[[Task], bool] = lambda row: False
    """Whether a budget that it would draw on is spent."""


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """A transition, on its way to the log."""

    type: str
    from_state: State | None
    task: Task
    actor: str
    trace: str | None
    reason: str | None = None
    exhausted: bool = False
    cycle: tuple[str, ...] = ()
