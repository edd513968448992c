"""What an agent that is heard of must know of its tasks, and what it says of the one it works on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.errors import Conflict, NotFound
from quarterdeck.domain.agents.heartbeat_port import (
    HeartbeatWarning,
    ReportedProgress,
    ReportedTasks,
    SaveProgress,
    TaskFeedback,
)
from quarterdeck.domain.agents.operations.authorization import require_permission
from quarterdeck.domain.tasks import request_commands
from quarterdeck.domain.tasks.model.commands import Abort, Progress, TaskCommand, TaskResult
from quarterdeck.domain.tasks.model.rows import State, Task
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.engine.secrets import FieldCipher
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import decode

LOST_AFTER_MS = MINUTE
"""What an agent was given longer ago than this and does not name, it has lost: an answer is not that long under way."""
WARNINGS_MAX = 100
"""Tasks that one answer warns of."""


@dataclass(frozen=True, slots=True)
class HeartbeatTasks:
    named_tasks: list[Task]
    held_tasks: list[Task]
    overdue_ids: list[str]
    now: Millis


class HeartbeatFeedback:
    def __init__(
        self, engine: Engine, submit: Callable[[TaskCommand], Awaitable[TaskResult]], cipher: FieldCipher
    ) -> None:
        self._engine = engine
        self._submit = submit
        self._cipher = cipher

    # -- what it must know ---------------------------------------------------------------------------------------

    async def build_feedback(self, working: ReportedTasks) -> TaskFeedback:
        """Of what it names: what is no longer its own it must stop. Of all it holds: what is too long under way. What
        it holds and does not name, although it names all it has, it has lost, as one does that was killed and begun
        anew: the attempt is over."""
        found = await self._engine.read(
            lambda tx: _load_tasks(tx, working), zones={working.zone_id, working.caller.zone_id}
        )
        by_id = {task.id: task for task in found.named_tasks}
        held_ids = {task.id for task in found.named_tasks if task.status in HELD and task.agent_id == working.agent_id}
        paused = [name for name in working.task_ids if name in by_id and by_id[name].status is State.PAUSED]
        canceled = [name for name in working.task_ids if name not in held_ids and name not in paused]
        lost = [
            task
            for task in found.held_tasks
            if task.id not in working.task_ids and (task.assigned_at or found.now) < found.now - LOST_AFTER_MS
        ]
        await self._abort_lost(lost)
        lost_ids = {task.id for task in lost}
        warnings = [_overdue_warning(task_id) for task_id in found.overdue_ids if task_id not in lost_ids]
        return TaskFeedback(tuple(canceled), tuple(paused), tuple(warnings))

    async def _abort_lost(self, lost: Sequence[Task]) -> None:
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
            for task in lost
        ]
        for outcome in await asyncio.gather(*submissions, return_exceptions=True):
            # Moved or gone between the two is nobody's loss.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound | Conflict):
                raise outcome

    # -- what it says --------------------------------------------------------------------------------------------

    async def check_report(self, reported: ReportedProgress) -> SaveProgress:
        """Looks at what a heartbeat says of its current task before anything is changed, and raises what is wrong with
        it. That the attempt is over is no reason: it is by its heartbeat that the agent hears of it. But whoever shows
        an older token while another attempt has the task is refused, and not heard of by that."""
        progress = self._progress_command(reported)
        task = await self._engine.read(
            lambda tx: _load_current(tx, reported), zones={reported.zone_id, reported.caller.zone_id}
        )
        if task.status in HELD and task.attempt_token != progress.attempt_token:
            # The lane refuses it, since no older token counts ever again, and notes that two believe to have the task.
            await self._submit(progress)

        async def save_report() -> HeartbeatWarning | None:
            if task.status not in HELD or task.agent_id != reported.agent_id:
                return _ended_warning(errors.stale_attempt(task), task.id)
            if progress.percent is None and progress.step is None and progress.checkpoint is None:
                # That the agent is there is no progress of its task.
                return None
            try:
                await self._submit(progress)
            except Conflict as problem:
                # Its attempt was not over a moment ago, and the heartbeat counts: the agent is told by its answer.
                if problem.code != "stale_attempt":
                    raise
                return _ended_warning(problem, task.id)
            return None

        return save_report

    def _progress_command(self, reported: ReportedProgress) -> Progress:
        return Progress(
            zone_id=reported.zone_id,
            caller=reported.caller,
            trace=reported.trace,
            id=reported.task_id,
            attempt_token=reported.attempt_token or reported.caller.attempt,
            percent=reported.progress_percent,
            step=reported.current_step,
            checkpoint=request_commands.encrypt_field(
                self._cipher, reported.zone_id, reported.task_id, "checkpoint_data", reported.checkpoint_data
            ),
        )


async def _load_tasks(tx: Transaction, working: ReportedTasks) -> HeartbeatTasks:
    """In one trip, which is made again and again by every agent that names what it has."""
    held_states = (State.ASSIGNED, State.RUNNING) if working.is_complete else ()
    running_states = (State.RUNNING,) if working.holds_tasks else ()
    named_rows, held_rows, warned_rows = await tx.read(
        Q.tasks_get(batch=[(working.zone_id, name) for name in working.task_ids]),
        Q.tasks_of_agents(batch=[(working.zone_id, working.agent_id, state) for state in held_states]),
        LISTS.tasks_warned(batch=[(working.zone_id, working.agent_id, state) for state in running_states]),
    )
    overdue_ids = sorted(str(row[0]) for row in warned_rows)[:WARNINGS_MAX]
    return HeartbeatTasks(decode(named_rows, Task), decode(held_rows, Task), overdue_ids, tx.now)


async def _load_current(tx: Transaction, reported: ReportedProgress) -> Task:
    """Only for those who may speak of tasks at all: nobody else learns which there are."""
    await require_permission(tx, reported.caller, reported.zone_id, "tasks.work")
    [rows] = await tx.read(Q.tasks_get(batch=[(reported.zone_id, reported.task_id)]))
    if not rows:
        raise errors.task_not_found(reported.task_id)
    [task] = decode(rows, Task)
    return task


def _overdue_warning(task_id: str) -> HeartbeatWarning:
    return HeartbeatWarning("task_overdue", "It is long past its estimate: report progress, or it is aborted.", task_id)


def _ended_warning(problem: Conflict, task_id: str) -> HeartbeatWarning:
    return HeartbeatWarning(problem.code, problem.detail, task_id)
