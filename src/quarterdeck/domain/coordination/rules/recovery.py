"""Builds the commands for the due work that a cycle of the coordinator has found.

These functions only build commands. The lanes check each row again, under the zone's lock, and ignore an attempt that
has ended in the meantime.

| found                                                  | command                                               |
|--------------------------------------------------------|-------------------------------------------------------|
| an attempt has timed out                               | abort it (`timeout`); it is retried after a backoff   |
| an attempt was assigned and not launched in time       | abort it (`launch_lost`)                              |
| an attempt is long past its estimate                   | warn its agent                                        |
| an attempt made no progress after its warning          | abort it (`hung`); retried with a higher priority     |
| the start time or the backoff of a task has passed     | make it available                                     |
| an ended task still has blocked dependents             | unblock them, a limited number per command            |
| tasks form a dependency cycle                          | fail all tasks of the cycle, with its path            |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.domain.tasks.model.commands import Abort, FailForCycle, MakeAvailable, UnblockDependents, Warn
from quarterdeck.domain.tasks.model.rows import OverdueAttempt, State, TaskRef, TimedOutAttempt
from quarterdeck.domain.tasks.rules.dependency_graph import find_cycle, find_stuck_tasks

TIMEOUT = "timeout"
LAUNCH_LOST = "launch_lost"
HUNG = "hung"
CYCLE_MAX = 100
"""Maximum number of task ids of a cycle that a command carries."""
RecoveryCommand = Abort | MakeAvailable | Warn | UnblockDependents | FailForCycle
LeaderTerm = tuple[str, int]
"""(lease name, term)"""


@dataclass(frozen=True, slots=True)
class TasksToRecover:
    timed_out: Sequence[TimedOutAttempt] = ()
    overdue: Sequence[OverdueAttempt] = ()
    due: Sequence[TaskRef] = ()
    dependents_pending: Sequence[TaskRef] = ()

    def __len__(self) -> int:
        return len(self.timed_out) + len(self.overdue) + len(self.due) + len(self.dependents_pending)


def recovery_commands(
    to_recover: TasksToRecover, leader_term: LeaderTerm | None, next_jitter: Callable[[], float]
) -> list[RecoveryCommand]:
    """Return the commands: first those that free slots, then those that make tasks ready."""
    return [
        *(_abort_timed_out(attempt, leader_term, next_jitter()) for attempt in to_recover.timed_out),
        *(_warn_or_abort(attempt, leader_term, next_jitter()) for attempt in to_recover.overdue),
        *(
            UnblockDependents(zone_id=zone_id, id=task_id, leader_term=leader_term)
            for zone_id, task_id in to_recover.dependents_pending
        ),
        *(MakeAvailable(zone_id=zone_id, id=task_id, leader_term=leader_term) for zone_id, task_id in to_recover.due),
    ]


def _abort_timed_out(attempt: TimedOutAttempt, leader_term: LeaderTerm | None, jitter: float) -> Abort:
    is_started = attempt.status is not State.ASSIGNED
    return Abort(
        zone_id=attempt.zone_id,
        id=attempt.id,
        leader_term=leader_term,
        attempt_token=attempt.attempt_token,
        reason=TIMEOUT if is_started else LAUNCH_LOST,
        condition="timed_out" if is_started else "not_started",
        jitter=jitter,
    )


def _warn_or_abort(attempt: OverdueAttempt, leader_term: LeaderTerm | None, jitter: float) -> Warn | Abort:
    if not attempt.was_warned:
        return Warn(zone_id=attempt.zone_id, id=attempt.id, leader_term=leader_term)
    return Abort(
        zone_id=attempt.zone_id,
        id=attempt.id,
        leader_term=leader_term,
        attempt_token=attempt.attempt_token,
        reason=HUNG,
        condition="hung",
        jitter=jitter,
        raises_priority=True,
    )


def dependency_cycle_commands(
    zone_id: str, depends_on: Mapping[str, Iterable[str]], leader_term: LeaderTerm | None
) -> list[FailForCycle]:
    """Return a command for each task in a cycle. Tasks that only depend on a cycle fail later, as its dependents."""
    # Remove tasks that depend on no cycle, then tasks on which no cycle depends. The others are in or between cycles.
    stuck = find_stuck_tasks(depends_on)
    dependents: dict[str, list[str]] = {task: [] for task in stuck}
    for task in stuck:
        for dependency in depends_on[task]:
            if dependency in stuck:
                dependents[dependency].append(task)
    stuck = find_stuck_tasks(dependents)
    cyclic = {task: [dependency for dependency in depends_on[task] if dependency in stuck] for task in sorted(stuck)}
    commands: list[FailForCycle] = []
    cycles: dict[str, tuple[str, ...]] = {}
    for task in cyclic:
        if task not in cycles:
            # If the task is in a cycle that was already found, no search is needed.
            cycle = tuple(find_cycle(task, cyclic) or ())
            cycles |= dict.fromkeys(cycle or (task,), cycle)
        if not (cycle := cycles[task]):
            continue
        commands.append(FailForCycle(zone_id=zone_id, id=task, leader_term=leader_term, cycle=cycle[:CYCLE_MAX]))
    return commands
