"""What was loaded for a batch, and what is told of it: the board's input and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Binding, Key
from quarterdeck.domain.tasks.model.commands import Ask
from quarterdeck.domain.tasks.model.rows import AgentRef, Ref, State, Strategy, Task

ClassRef = tuple[str, str]
"""(zone, class)"""


@dataclass(frozen=True, slots=True)
class Worker:
    """What of an agent decides."""

    capabilities: frozenset[str]
    free: int
    """How many tasks it may still be given."""
    lease_expires_at: Millis
    """Until when it is believed to live if nothing more is heard of it."""
    problem: Problem | None = None
    """Why it may be given none."""
    is_lost: bool = False
    """It was found silent: nothing is given to it before it speaks."""
    was_just_heard: bool = False
    """So lately that it need not be written down that it is there."""
    is_unheard: bool = False
    """It has never spoken: nobody looks yet whether it is there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of tasks: those that ask the same of whoever takes them."""

    task_type: str
    capabilities: frozenset[str]

    def suits(self, has: frozenset[str], task_types: frozenset[str] | None) -> bool:
        """Whether one who has these capabilities, and wants these types, may take what is of this kind."""
        return self.capabilities <= has and (task_types is None or self.task_type in task_types)


class Standing(msgspec.Struct, frozen=True, array_like=True):
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
    def is_done(self) -> bool:
        return self.completed_at is not None


def standing(row: Task) -> Standing:
    return Standing(row.zone_id, row.id, row.status, row.final, row.completed_at)


@dataclass(frozen=True, slots=True)
class Windows:
    """How long things may take."""

    backoff_cap_ms: Millis
    overdue_ms: Millis
    hung_ms: Millis


@dataclass(frozen=True, slots=True)
class Known:
    """What was loaded under the zones' locks."""

    now: Millis
    windows: Windows
    problem_of: Callable[[Ask, str], Problem | None]
    """Why a caller may not use a power, by what is known of it: its session, its agent, its role."""
    zones: Mapping[str, Problem | None] = field(default_factory=dict)
    """The zones that were locked, and why nothing can begin in them any more, if so."""
    rows: Iterable[Task] = ()
    """Whatever is named: by its id, its key, the claim that holds it, or what it depends on."""
    standings: Iterable[Standing] = ()
    """Of those that something is to depend on."""
    keys: Mapping[Key, Binding] = field(default_factory=dict)
    workers: Mapping[AgentRef, Worker] = field(default_factory=dict)
    kinds: Mapping[ClassRef, Kind] = field(default_factory=dict)
    ready: Sequence[Task] = ()
    """What may begin, in the order of turns."""
    sizes: Mapping[Ref, int] = field(default_factory=dict)
    """Of what may be given out, how many bytes it says."""
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    shares: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(zone, creator) → its last turn, and (zone, "") → the turn that was last served, where turns are fair"""
    blocked: Mapping[Ref, Sequence[Ref]] = field(default_factory=dict)
    """Of what may end in this batch, those that still wait for it."""
    blocked_cut: bool = False
    """There may be more of those than were loaded."""
    ahead: Mapping[Ref, Sequence[str]] = field(default_factory=dict)
    """What each depends on, as far as the way ahead of those whose dependencies change."""
    tags: Mapping[Ref, Sequence[str]] = field(default_factory=dict)
    """Of those whose tags are replaced."""
    spent: Callable[[Task], bool] = lambda row: False
    """Whether a budget that it would draw on is spent."""


@dataclass(frozen=True, slots=True)
class Told:
    """A transition, on its way to the log."""

    type: str
    before: State | None
    row: Task
    actor: str
    trace: str | None
    reason: str | None = None
    exhausted: bool = False
    cycle: tuple[str, ...] = ()
