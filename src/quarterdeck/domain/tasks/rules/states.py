"""Task states and transitions, and when a failed attempt is retried.

Each function returns the task after one change. The functions do not check the current state; the decider does. The
table `TASK_STATES` lists the transitions; `docs/states/task.md` is generated from it.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from quarterdeck.core.clock import MINUTE, SECOND, Millis
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.domain.tasks.model.commands import Cost, Create, Patch
from quarterdeck.domain.tasks.model.rows import State, Strategy, Task, Verb, WaitsFor

_OPEN = (State.PENDING, State.ASSIGNED, State.RUNNING)
TASK_STATES: StateMachine[State, Verb] = StateMachine(
    "task",
    State,
    State.PENDING,
    {
        Verb.ASSIGN: {State.PENDING: State.ASSIGNED},
        Verb.CLAIM: {State.PENDING: State.RUNNING, State.ASSIGNED: State.RUNNING},
        Verb.START: {State.ASSIGNED: State.RUNNING},
        Verb.PAUSE: dict.fromkeys(_OPEN, State.PAUSED),
        Verb.RESUME: {State.PAUSED: State.PENDING},
        Verb.COMPLETE: {State.ASSIGNED: State.COMPLETED, State.RUNNING: State.COMPLETED, State.PAUSED: State.COMPLETED},
        Verb.FAIL: {State.ASSIGNED: State.FAILED, State.RUNNING: State.FAILED},
        Verb.FAIL_DEPENDENCY: {State.PENDING: State.FAILED, State.PAUSED: State.FAILED},
        Verb.RELEASE: {State.ASSIGNED: State.PENDING, State.RUNNING: State.PENDING},
        Verb.ABORT: dict.fromkeys((*_OPEN, State.PAUSED), State.ABORTED),
        Verb.CANCEL: dict.fromkeys((*_OPEN, State.PAUSED, State.FAILED, State.ABORTED), State.ABORTED),
        Verb.REQUEUE: {State.ABORTED: State.PENDING, State.FAILED: State.PENDING},
        Verb.ARCHIVE: {State.COMPLETED: State.ARCHIVED, State.FAILED: State.ARCHIVED, State.ABORTED: State.ARCHIVED},
    },
)
HELD = frozenset({State.ASSIGNED, State.RUNNING})
"""States in which an agent holds the task."""
DEPENDENCY_FAILED = "dependency_failed"
DEPENDENCY_CYCLE = "dependency_cycle"
_replace = msgspec.structs.replace


def has_ended(task: Task) -> bool:
    """Whether the task will have no further attempts unless a user retries it."""
    return task.status in (State.COMPLETED, State.ARCHIVED) or bool(task.final)


class TaskRank(msgspec.Struct, frozen=True):
    """The rank of a task, and the strategy under which it was computed."""

    strategy: Strategy
    value: int


def create(command: Create, rank: TaskRank, unmet_count: int, now: Millis) -> Task:
    assert command.caller is not None
    available_at = max(now, command.run_at or now)
    return Task(
        id=command.id,
        zone_id=command.zone_id,
        task_type=command.task_type,
        status=State.PENDING,
        priority=command.priority,
        agent_id=None,
        session_key=None,
        progress_percent=0,
        current_step=None,
        estimated_duration_minutes=command.estimated_duration_minutes,
        estimated_completion_at=None,
        retry_count=0,
        max_retries=command.max_retries,
        retry_backoff_seconds=command.retry_backoff_seconds,
        on_dependency_failure=command.on_dependency_failure,
        class_id=command.class_id,
        rank=rank.value,
        ranked_by=rank.strategy,
        waits_for=_waits_for(unmet_count, available_at, now),
        dependency_count=len(command.depends_on),
        unmet_dependencies=unmet_count,
        available_at=available_at,
        timeout_seconds=command.timeout_seconds,
        timeout_at=None,
        attempt=0,
        attempt_token=None,
        claim_id=None,
        final=0,
        reason=None,
        dependents_pending=0,
        warned_at=None,
        progress_at=None,
        overdue_at=None,
        usd_micros=0,
        input_tokens=0,
        output_tokens=0,
        created_by=command.caller.subject,
        application_id=command.caller.client_id,
        trace=command.trace,
        created_at=now,
        updated_at=now,
        assigned_at=None,
        started_at=None,
        completed_at=None,
        failed_at=None,
    )


def waits_for(task: Task, now: Millis) -> int:
    """What a PENDING task is waiting for before it can be claimed (`WaitsFor`)."""
    return _waits_for(task.unmet_dependencies, task.available_at, now)


def _waits_for(unmet_count: int, available_at: Millis, now: Millis) -> int:
    # Check dependencies first: until they are met, the start time does not matter.
    if unmet_count:
        return WaitsFor.DEPENDENCIES
    return WaitsFor.TIME if available_at > now else WaitsFor.NOTHING


# -- attempts ----------------------------------------------------------------------------------------------------


class Attempt(msgspec.Struct, frozen=True):
    agent_id: str
    token: str
    claim_id: str | None = None
    session_key: str | None = None


def assign(task: Task, attempt: Attempt, now: Millis) -> Task:
    # Count the attempt now, not when it ends: an agent that dies never reports the end.
    return _replace(
        task,
        status=State.ASSIGNED,
        agent_id=attempt.agent_id,
        attempt=task.attempt + 1,
        attempt_token=attempt.token,
        claim_id=attempt.claim_id,
        session_key=attempt.session_key,
        progress_percent=0,
        current_step=None,
        warned_at=None,
        progress_at=None,
        overdue_at=None,
        timeout_at=_timeout_at(task, now),
        assigned_at=now,
        updated_at=now,
    )


def set_launch_deadline(task: Task, deadline: Millis) -> Task:
    """Until the task starts, `timeout_at` is the launch deadline. `start` replaces it with the attempt's timeout."""
    return _replace(task, timeout_at=deadline)


def start(task: Task, overdue_ms: Millis, now: Millis) -> Task:
    """Start the attempt. Its agent is warned `overdue_ms` after the estimated end."""
    estimated_end = task.estimated_completion_at
    if task.estimated_duration_minutes is not None:
        estimated_end = now + task.estimated_duration_minutes * MINUTE
    return _replace(
        task,
        status=State.RUNNING,
        estimated_completion_at=estimated_end,
        overdue_at=None if estimated_end is None else estimated_end + overdue_ms,
        timeout_at=_timeout_at(task, now),
        started_at=now,
        progress_at=now,
        updated_at=now,
    )


def set_claim_id(task: Task, claim_id: str | None) -> Task:
    return _replace(task, claim_id=claim_id)


def _timeout_at(task: Task, now: Millis) -> Millis | None:
    return None if task.timeout_seconds is None else now + task.timeout_seconds * SECOND


class ProgressReport(msgspec.Struct, frozen=True):
    percent: int | None
    step: str | None
    is_reset: bool = False


def update_progress(task: Task, report: ProgressReport, now: Millis) -> Task:
    """Apply a progress report. Within an attempt, progress never decreases unless the agent resets it."""
    percent = task.progress_percent if report.percent is None else report.percent
    return _replace(
        task,
        progress_percent=percent if report.is_reset else max(percent, task.progress_percent),
        current_step=task.current_step if report.step is None else report.step,
        progress_at=now,
        updated_at=now,
    )


def set_session_key(task: Task, session_key: str) -> Task:
    return _replace(task, session_key=session_key)


def release(task: Task, now: Millis) -> Task:
    """Give the attempt back. It does not count as an attempt of the task."""
    pending = _clear_attempt(task, State.PENDING, now)
    return _replace(pending, attempt=task.attempt - 1, waits_for=waits_for(pending, now))


def pause(task: Task, now: Millis) -> Task:
    """Pause the task and end its attempt: later reports from its agent are refused. The checkpoint is kept."""
    return _replace(_clear_attempt(task, State.PAUSED, now), waits_for=WaitsFor.NOTHING)


def resume(task: Task, now: Millis) -> Task:
    pending = _replace(task, status=State.PENDING, updated_at=now)
    return _replace(pending, waits_for=waits_for(pending, now))


def _clear_attempt(task: Task, status: State, now: Millis) -> Task:
    return _replace(
        task,
        status=status,
        agent_id=None,
        session_key=None,
        attempt_token=None,
        claim_id=None,
        timeout_at=None,
        overdue_at=None,
        warned_at=None,
        updated_at=now,
    )


# -- end, retry and archive --------------------------------------------------------------------------------------


def complete(task: Task, now: Millis) -> Task:
    # Keep the token, so that a repeated report is recognised.
    return _replace(
        task,
        status=State.COMPLETED,
        waits_for=WaitsFor.NOTHING,
        progress_percent=100,
        timeout_at=None,
        overdue_at=None,
        completed_at=now,
        updated_at=now,
    )


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt ended without a result."""

    reason: str
    jitter: float
    """Random number in [0, 1) for the backoff."""
    retryable: bool = True
    raises_priority: bool = False


def fail(task: Task, status: State, failure: Failure, backoff_max_ms: Millis, now: Millis) -> Task:
    """End the attempt as FAILED or ABORTED. If the failure is retryable and retries remain, the task is retried after a
    backoff; otherwise it is FAILED and final."""
    retries_exhausted = task.retry_count >= task.max_retries
    # Keep the agent and the token, so that a repeated report of this failure is recognised.
    ended = _replace(
        _clear_attempt(task, status, now),
        agent_id=task.agent_id,
        attempt_token=task.attempt_token,
        reason=failure.reason,
        failed_at=now,
    )
    if not failure.retryable or retries_exhausted:
        return _replace(ended, status=State.FAILED, waits_for=WaitsFor.NOTHING, final=1, dependents_pending=1)
    policy = Policy(0, task.retry_backoff_seconds * SECOND, 2.0, backoff_max_ms)
    return _replace(
        ended,
        waits_for=WaitsFor.TIME,
        available_at=now + backoff(policy, attempt=task.retry_count + 1, jitter=failure.jitter),
        retry_count=task.retry_count + 1,
        priority=min(10, task.priority + 1) if failure.raises_priority else task.priority,
    )


def has_exhausted_retries(before: Task, after: Task, *, retryable: bool) -> bool:
    """Whether the task failed because no retry was left."""
    return bool(after.final) and retryable and before.retry_count >= before.max_retries


def cancel(task: Task, reason: str, now: Millis) -> Task:
    """Make the task ABORTED and final, and clear its agent and token."""
    ended = _clear_attempt(task, State.ABORTED, now)
    return _replace(ended, waits_for=WaitsFor.NOTHING, final=1, dependents_pending=1, reason=reason, failed_at=now)


def fail_dependency(task: Task, reason: str, now: Millis) -> Task:
    return _replace(
        task,
        status=State.FAILED,
        waits_for=WaitsFor.NOTHING,
        final=1,
        dependents_pending=1,
        reason=reason,
        failed_at=now,
        updated_at=now,
    )


def cancel_retry(task: Task, reason: str, now: Millis) -> Task:
    """Cancel a task that is waiting for a retry. It has no open attempt; its last agent and token are kept."""
    return _replace(
        task,
        status=State.ABORTED,
        waits_for=WaitsFor.NOTHING,
        final=1,
        dependents_pending=1,
        reason=reason,
        failed_at=now,
        updated_at=now,
    )


def requeue(task: Task, now: Millis) -> Task:
    """Make the task PENDING again after its backoff."""
    pending = _replace(
        _clear_attempt(task, State.PENDING, now),
        final=0,
        dependents_pending=0,
        reason=None,
        failed_at=None,
        available_at=min(task.available_at, now),
    )
    return _replace(pending, waits_for=waits_for(pending, now))


def retry(task: Task, now: Millis) -> Task:
    """Make the task PENDING again on a user's request. The retry count is reset, and the checkpoint is kept."""
    pending = _replace(
        _clear_attempt(task, State.PENDING, now),
        final=0,
        dependents_pending=0,
        reason=None,
        retry_count=0,
        available_at=now,
    )
    return _replace(pending, waits_for=waits_for(pending, now), failed_at=None)


def archive(task: Task, now: Millis) -> Task:
    return _replace(task, status=State.ARCHIVED, waits_for=WaitsFor.NOTHING, updated_at=now)


def add_costs(task: Task, costs: tuple[Cost, ...]) -> Task:
    return _replace(
        task,
        usd_micros=task.usd_micros + sum(cost.usd_micros for cost in costs),
        input_tokens=task.input_tokens + sum(cost.input_tokens for cost in costs),
        output_tokens=task.output_tokens + sum(cost.output_tokens for cost in costs),
    )


# -- rank, dependencies, warnings and changes --------------------------------------------------------------------


def set_rank(task: Task, rank: TaskRank) -> Task:
    return _replace(task, rank=rank.value, ranked_by=rank.strategy)


def update_waits_for(task: Task, now: Millis) -> Task:
    """Recompute `waits_for` of a PENDING task whose start time has passed."""
    return _replace(task, waits_for=waits_for(task, now), updated_at=now)


def set_dependencies(task: Task, dependency_count: int, unmet_count: int, now: Millis) -> Task:
    changed = _replace(task, dependency_count=dependency_count, unmet_dependencies=unmet_count, updated_at=now)
    return _replace(changed, waits_for=waits_for(changed, now)) if task.status is State.PENDING else changed


def meet_dependency(task: Task, now: Millis) -> Task:
    return set_dependencies(task, task.dependency_count, max(0, task.unmet_dependencies - 1), now)


def set_dependents_pending(task: Task, *, pending: bool) -> Task:
    """Mark an ended task that still has blocked dependents, or clear the mark."""
    return _replace(task, dependents_pending=int(pending))


def mark_warned(task: Task, next_check_at: Millis, now: Millis) -> Task:
    return _replace(task, warned_at=now, overdue_at=next_check_at, updated_at=now)


def set_overdue_at(task: Task, next_check_at: Millis) -> Task:
    """Postpone the abort of a warned attempt that has made progress."""
    return _replace(task, overdue_at=next_check_at)


def apply_patch(task: Task, command: Patch, overdue_ms: Millis, now: Millis) -> Task:
    estimated_end = (
        task.estimated_completion_at if command.estimated_completion_at is UNSET else command.estimated_completion_at
    )
    after = _replace(
        task,
        priority=task.priority if command.priority is None else command.priority,
        estimated_completion_at=estimated_end,
        updated_at=now,
    )
    if task.status is not State.RUNNING or estimated_end == task.estimated_completion_at:
        return after
    return _replace(after, warned_at=None, overdue_at=None if estimated_end is None else estimated_end + overdue_ms)
