"""Commands that the server itself sends, mostly the coordinator.

Time has passed since the coordinator read the task, so each command checks that its reason still holds. If it does not,
the task stays as it is.
"""

from __future__ import annotations

from quarterdeck.core.attempts import is_latest_attempt
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import (
    Abort,
    AbortCondition,
    Assign,
    FailForCycle,
    MakeAvailable,
    RecordLaunch,
    UnblockDependents,
    Warn,
)
from quarterdeck.domain.tasks.model.rows import ContentUpdate, State, Task, Verb, WaitsFor
from quarterdeck.domain.tasks.rules import errors, states
from quarterdeck.domain.tasks.rules.batch import Batch
from quarterdeck.domain.tasks.rules.decisions.dependents import unblock
from quarterdeck.domain.tasks.rules.decisions.report import attempt_problem, fail_attempt, start_assigned
from quarterdeck.domain.tasks.rules.states import HELD, Attempt, Failure

CYCLE_EVENT_MAX = 100
"""Maximum number of task ids in the data of an event."""


def assign(batch: Batch, command: Assign, task: Task) -> Task | Problem:
    ref = (command.zone_id, command.agent_id)
    agent = batch.agents.get(ref)
    zone_problem = batch.loaded.zone_problems.get(command.zone_id)
    if zone_problem or agent is None or agent.problem or agent.is_stale or batch.agents.free_slots(ref) <= 0:
        return errors.state_conflict(task, "assigned", "the agent accepts no more tasks")
    if not states.is_allowed(Verb.ASSIGN, task) or task.waits_for:
        return errors.state_conflict(task, "assigned", f"it is {task.status}")
    if batch.loaded.is_over_budget(task):
        return errors.state_conflict(task, "assigned", "its budget is spent")
    attempt = Attempt(command.agent_id, command.attempt_token)
    after = states.assign(task, attempt, batch.now + command.launch_timeout_ms, batch.now)
    batch.fair_ranks.record_claim(task)
    batch.agents.take_slot(after)
    batch.transition(task, after, Verb.ASSIGN, command)
    return after


def record_launch(batch: Batch, command: RecordLaunch, task: Task) -> Task | Problem:
    if problem := attempt_problem(task, command.attempt_token):
        return problem
    if task.session_key != command.session_key:
        task = states.set_session_key(task, command.session_key)
        batch.update(task)
    return start_assigned(batch, command, task)


def abort(batch: Batch, command: Abort, task: Task) -> Task:
    is_current = is_latest_attempt(task, command.attempt_token, HELD)
    if not is_current or not _condition_holds(command.condition, task, batch.now):
        return task
    batch.content.update(task.ref, ContentUpdate(last_error=f"The attempt was aborted: {command.reason}."))
    failure = Failure(command.reason, command.jitter, raises_priority=command.raises_priority)
    return fail_attempt(batch, task, Verb.ABORT, failure, command)


def _condition_holds(condition: AbortCondition | None, task: Task, now: Millis) -> bool:
    """Whether the reason for the abort still applies: the attempt may have started or made progress since."""
    match condition:
        case None:
            return True
        case "hung":
            return task.warned_at is not None and task.overdue_at is not None and task.overdue_at <= now
        case "not_started" if task.status is not State.ASSIGNED:
            return False
        case "not_started" | "timed_out":
            return task.timeout_at is not None and task.timeout_at <= now


def make_available(batch: Batch, command: MakeAvailable, task: Task) -> Task:
    if task.waits_for != WaitsFor.TIME or task.available_at > batch.now:
        return task
    if task.status is State.PENDING:
        after = states.make_available(task, batch.now)
        batch.update(after)
    else:
        after = states.requeue(task, batch.now)
        batch.transition(task, after, Verb.REQUEUE, command, {"reason": "backoff"})
    batch.queues.push_if_ready(after)
    return after


def warn(batch: Batch, command: Warn, task: Task) -> Task:
    if task.status is not State.RUNNING or task.overdue_at is None or task.overdue_at > batch.now:
        return task
    after = states.mark_warned(task, batch.loaded.timeouts.hung_ms, batch.now)
    batch.update(after)
    batch.tasks.emit("task.warned", task.status, after, command, {"reason": "overdue"})
    return after


def unblock_dependents(batch: Batch, command: UnblockDependents, task: Task) -> Task:
    if task.dependents_pending and (task.final or task.completed_at is not None):
        return unblock(batch, task, command)
    return task


def fail_for_cycle(batch: Batch, command: FailForCycle, task: Task) -> Task:
    """Fail a task in a dependency cycle, if it is still waiting for dependencies."""
    if not states.is_allowed(Verb.FAIL_DEPENDENCY, task) or not task.unmet_dependencies:
        return task
    error = f"Its dependencies form a cycle: {errors.format_cycle(command.cycle)}."
    batch.content.update(task.ref, ContentUpdate(last_error=error))
    after = states.fail_dependency(task, states.DEPENDENCY_CYCLE, batch.now)
    data = {"reason": states.DEPENDENCY_CYCLE, "cycle": [*command.cycle[:CYCLE_EVENT_MAX]]}
    batch.transition(task, after, Verb.FAIL_DEPENDENCY, command, data)
    return after
