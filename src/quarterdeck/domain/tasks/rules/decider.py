"""Decides the commands of one batch, in order of arrival. Each command sees the changes made by earlier commands.

Pure: no I/O, no clock, no randomness. Time, tokens and jitter are inputs. The caller loads a `BatchInput`, calls
`decide` for each command, and writes all changes of `batch` in one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quarterdeck.core.command import Command
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import (
    Abort,
    Archive,
    Assign,
    Cancel,
    Claim,
    Complete,
    Create,
    Fail,
    FailForCycle,
    MakeAvailable,
    Patch,
    Pause,
    Progress,
    RecordLaunch,
    Release,
    Resume,
    Retry,
    Start,
    TaskCommand,
    TaskResult,
    TaskUpdate,
    UnblockDependents,
    Warn,
)
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.batch import Batch
from quarterdeck.domain.tasks.rules.batch_input import BatchInput
from quarterdeck.domain.tasks.rules.decisions import change, coordinator, report
from quarterdeck.domain.tasks.rules.decisions.claim import claim
from quarterdeck.domain.tasks.rules.decisions.create import create

PERMISSIONS: dict[type[Command], str] = {
    Create: "tasks.create",
    **dict.fromkeys((Claim, Start, Progress, Complete, Fail, Release), "tasks.work"),
    **dict.fromkeys((Cancel, Retry, Pause, Resume, Patch, Archive), "tasks.change"),
}
"""The permission that each command needs. Commands that are not listed are sent by the server itself."""
# Any: each decision takes the command that is its key. `test_each_command_has_its_decision` checks it.
DECISIONS: dict[type[TaskUpdate], Callable[[Batch, Any, Task], Task | Problem]] = {
    Start: report.start,
    Progress: report.progress,
    Complete: report.complete,
    Fail: report.fail,
    Release: report.release,
    Cancel: change.cancel,
    Retry: change.retry,
    Pause: change.pause,
    Resume: change.resume,
    Patch: change.patch,
    Archive: change.archive,
    Assign: coordinator.assign,
    RecordLaunch: coordinator.record_launch,
    Abort: coordinator.abort,
    MakeAvailable: coordinator.make_available,
    Warn: coordinator.warn,
    UnblockDependents: coordinator.unblock_dependents,
    FailForCycle: coordinator.fail_for_cycle,
}
REPORTS = frozenset({Start, Progress, Complete, Fail, Release})
"""Commands that the holder of an attempt sends with its token."""


class BatchDecider:
    def __init__(self, loaded: BatchInput) -> None:
        self.batch = Batch(loaded)

    def decide(self, command: TaskCommand) -> TaskResult | Problem:
        batch, kind = self.batch, type(command)
        permission = PERMISSIONS.get(kind, "tasks.work")
        if problem := batch.loaded.permission_problem(command, permission):
            return problem
        if isinstance(command, Create):
            return create(batch, command)
        if isinstance(command, Claim):
            return claim(batch, command)
        task = batch.tasks.get((command.zone_id, command.id))
        if task is None:
            return errors.task_not_found(command.id)
        agent_id = None if command.caller is None else command.caller.agent_id
        if permission == "tasks.work" and agent_id not in (None, task.agent_id):
            # The same error as for an old token: it does not reveal which agent holds the task.
            return errors.stale_attempt(task)
        result = DECISIONS[type(command)](batch, command, task)
        # If the response to a claim cannot be delivered, the server releases the attempt itself, without a caller; that
        # is no contact with the agent.
        if kind in REPORTS and command.caller is not None and not isinstance(result, Problem):
            batch.agents.record_report(task)
        return result
