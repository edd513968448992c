"""The task part of heartbeats: tasks that the agent must stop, overdue tasks, and progress that the agent reports."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.errors import Conflict, NotFound
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.tasks.model.commands import Abort, Progress
from quarterdeck.domain.tasks.model.heartbeat_types import HeartbeatWarning, ReportedTasks, TaskFeedback
from quarterdeck.domain.tasks.model.rows import State, Task
from quarterdeck.domain.tasks.operations.batch import SubmitTaskCommand
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import decode

LOST_AFTER_MS = MINUTE
"""If an agent does not name a task this long after its assignment, the task is lost: by then, the agent must have
received the response to its claim."""
WARNINGS_MAX = 100
"""Maximum number of overdue warnings per response."""


@dataclass(frozen=True, slots=True)
class HeartbeatTasks:
    named_tasks: list[Task]
    held_tasks: list[Task]
    overdue_ids: list[str]
    now: Millis


class HeartbeatFeedback:
    def __init__(self, engine: Engine, submit: SubmitTaskCommand) -> None:
        self._engine = engine
        self._submit = submit

    # -- feedback ------------------------------------------------------------------------------------------------

    async def build_feedback(self, reported: ReportedTasks) -> TaskFeedback:
        """Find the named tasks that the agent no longer holds, and the tasks it holds that are overdue.

        If the heartbeat is meant to name all tasks of the agent, a task that the agent holds but does not name is lost,
        for example because the agent was killed and restarted. Its attempt is aborted.
        """
        loaded = await self._engine.read(
            lambda tx: _load_tasks(tx, reported), zones={reported.zone_id, reported.caller.zone_id}
        )
        by_id = {task.id: task for task in loaded.named_tasks}
        held_ids = {
            task.id for task in loaded.named_tasks if task.status in HELD and task.agent_id == reported.agent_id
        }
        paused_ids = [
            task_id for task_id in reported.task_ids if task_id in by_id and by_id[task_id].status is State.PAUSED
        ]
        canceled_ids = [
            task_id for task_id in reported.task_ids if task_id not in held_ids and task_id not in paused_ids
        ]
        lost_tasks = [
            task
            for task in loaded.held_tasks
            if task.id not in reported.task_ids and (task.assigned_at or loaded.now) < loaded.now - LOST_AFTER_MS
        ]
        await self._abort_lost(lost_tasks)
        lost_ids = {task.id for task in lost_tasks}
        warnings = [_overdue_warning(task_id) for task_id in loaded.overdue_ids if task_id not in lost_ids]
        return TaskFeedback(tuple(canceled_ids), tuple(paused_ids), tuple(warnings))

    async def _abort_lost(self, lost_tasks: Sequence[Task]) -> None:
        submissions = [
            self._submit(
                Abort(
                    zone_id=task.zone_id,
                    id=task.id,
                    attempt_token=task.attempt_token,
                    reason="lost_by_agent",
                    jitter=random.random(),
                )
            )
            for task in lost_tasks
        ]
        for outcome in await asyncio.gather(*submissions, return_exceptions=True):
            # If the task was changed or deleted after it was read, no abort is needed.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound | Conflict):
                raise outcome

    # -- reported progress ---------------------------------------------------------------------------------------

    async def check_progress(self, progress: Progress, caller: Caller) -> Task:
        """Return the task of a report. Refuse the report, before anything changes, if another attempt holds the task.

        If the attempt has merely ended, the heartbeat counts and its response carries a warning (`save_progress`).
        """
        task = await self._engine.read(
            lambda tx: _load_reported_task(tx, progress, caller), zones={progress.zone_id, caller.zone_id}
        )
        if task.status in HELD and task.attempt_token != progress.attempt_token:
            # The lane refuses the older token, and logs that two workers are reporting on the same task.
            await self._submit(progress)
        return task

    async def save_progress(self, progress: Progress, task: Task, agent_id: str) -> HeartbeatWarning | None:
        """Store a report that `check_progress` has accepted. Return a warning if it was not stored."""
        if task.status not in HELD or task.agent_id != agent_id:
            return _ended_warning(errors.stale_attempt(task), task.id)
        if progress.percent is None and progress.step is None and progress.checkpoint is None:
            # A heartbeat alone does not count as progress on the task.
            return None
        try:
            await self._submit(progress)
        except Conflict as problem:
            # The attempt has ended since the check. The heartbeat still counts, and its response carries a warning.
            if problem.code != "stale_attempt":
                raise
            return _ended_warning(problem, task.id)
        return None


async def _load_tasks(tx: Transaction, reported: ReportedTasks) -> HeartbeatTasks:
    """Load everything in one round trip, because every heartbeat of an agent with tasks runs these queries."""
    held_states = (State.ASSIGNED, State.RUNNING) if reported.is_complete else ()
    running_states = (State.RUNNING,) if reported.holds_tasks else ()
    named_rows, held_rows, warned_rows = await tx.read(
        Q.tasks_get(batch=[(reported.zone_id, task_id) for task_id in reported.task_ids]),
        Q.tasks_of_agents(batch=[(reported.zone_id, reported.agent_id, state) for state in held_states]),
        LISTS.tasks_warned(batch=[(reported.zone_id, reported.agent_id, state) for state in running_states]),
    )
    overdue_ids = sorted(str(row[0]) for row in warned_rows)[:WARNINGS_MAX]
    return HeartbeatTasks(decode(named_rows, Task), decode(held_rows, Task), overdue_ids, tx.now)


async def _load_reported_task(tx: Transaction, progress: Progress, caller: Caller) -> Task:
    """Check the permission first: callers without it must not learn which tasks exist."""
    await access.require_permission(tx, caller, progress.zone_id, "tasks.work")
    [rows] = await tx.read(Q.tasks_get(batch=[(progress.zone_id, progress.id)]))
    if not rows:
        raise errors.task_not_found(progress.id)
    [task] = decode(rows, Task)
    return task


def _overdue_warning(task_id: str) -> HeartbeatWarning:
    detail = "The task is long past its estimate. Report progress, or the attempt will be aborted."
    return HeartbeatWarning("task_overdue", detail, task_id)


def _ended_warning(problem: Conflict, task_id: str) -> HeartbeatWarning:
    return HeartbeatWarning(problem.code, problem.detail, task_id)
