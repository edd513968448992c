"""Task states and transitions, and when a failed attempt is retried.

Each function returns the task after one change. The new state comes from the table `TASK_STATES`, from which
`docs/states/task.md` is generated. Decisions check the current state and refuse a command; here a transition that the
table does not have is a bug and raises KeyError.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from quarterdeck.core.clock import MINUTE, SECOND, Millis
from quarterdeck.core.retry import Policy, next_attempt_at
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.domain.costs.model import Cost
from quarterdeck.domain.tasks.model.commands import Create, Patch, Progress
from quarterdeck.domain.tasks.model.rows import State, Strategy, Task, Verb, WaitsFor
from quarterdeck.domain.tasks.rules import ranking

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
EVENT_TYPES = {
    Verb.ASSIGN: "task.assigned",
    Verb.CLAIM: "task.started",
    Verb.START: "task.started",
    Verb.PAUSE: "task.paused",
    Verb.RESUME: "task.resumed",
    Verb.COMPLETE: "task.completed",
    Verb.FAIL: "task.failed",
    Verb.FAIL_DEPENDENCY: "task.failed",
    Verb.RELEASE: "task.released",
    Verb.ABORT: "task.aborted",
    Verb.CANCEL: "task.aborted",
    Verb.REQUEUE: "task.requeued",
    Verb.ARCHIVE: "task.archived",
}
HELD = frozenset({State.ASSIGNED, State.RUNNING})
"""States in which an agent holds the task."""
DEPENDENCY_FAILED = "dependency_failed"
DEPENDENCY_CYCLE = "dependency_cycle"
# Cleared when an attempt ends.
_NO_ATTEMPT = dict.fromkeys(("session_key", "claim_id", "timeout_at", "overdue_at", "warned_at"))
# Cleared too when no repeat of a report has to be recognised.
_NO_HOLDER = dict.fromkeys(("agent_id", "attempt_token"))
_replace = msgspec.structs.replace


def has_ended(task: Task) -> bool:
    """Whether the task will have no further attempts unless a user retries it."""
    return task.status in (State.COMPLETED, State.ARCHIVED) or bool(task.final)


def is_allowed(verb: Verb, task: Task) -> bool:
    return TASK_STATES.next_state(verb, task.status) is not None


def is_ready(task: Task) -> bool:
    return task.status is State.PENDING and task.waits_for == WaitsFor.NOTHING


def _transition(task: Task, verb: Verb, now: Millis, **changes: object) -> Task:
    return _replace(task, status=TASK_STATES.transitions[verb][task.status], updated_at=now, **changes)


def create(command: Create, rank: int, ranked_by: Strategy, unmet_count: int, now: Millis) -> Task:
    assert command.caller is not None  # the route requires a caller
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
        rank=rank,
        ranked_by=ranked_by,
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


def _waits_for(unmet_count: int, available_at: Millis, now: Millis) -> int:
    """What a PENDING task is waiting for before it can be claimed (`WaitsFor`)."""
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


def claim(task: Task, attempt: Attempt, overdue_ms: Millis, now: Millis) -> Task:
    return _start(_add_attempt(task, attempt, now), Verb.CLAIM, overdue_ms, now)


def assign(task: Task, attempt: Attempt, launch_deadline: Millis, now: Millis) -> Task:
    """Until the task starts, `timeout_at` is the launch deadline. `start` replaces it with the attempt's timeout."""
    return _transition(_add_attempt(task, attempt, now), Verb.ASSIGN, now, timeout_at=launch_deadline)


def start(task: Task, overdue_ms: Millis, now: Millis) -> Task:
    """Start the attempt that the assignment created. It keeps its token."""
    return _start(task, Verb.START, overdue_ms, now)


def _add_attempt(task: Task, attempt: Attempt, now: Millis) -> Task:
    # Count the attempt now, not when it ends: an agent that dies never reports the end.
    return _replace(
        task,
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
        assigned_at=now,
    )


def _start(task: Task, verb: Verb, overdue_ms: Millis, now: Millis) -> Task:
    """Start the attempt. Its agent is warned `overdue_ms` after the estimated end."""
    estimated_end = task.estimated_completion_at
    if task.estimated_duration_minutes is not None:
        estimated_end = now + task.estimated_duration_minutes * MINUTE
    return _transition(
        task,
        verb,
        now,
        estimated_completion_at=estimated_end,
        overdue_at=None if estimated_end is None else estimated_end + overdue_ms,
        timeout_at=None if task.timeout_seconds is None else now + task.timeout_seconds * SECOND,
        started_at=now,
        progress_at=now,
    )


def set_claim_id(task: Task, claim_id: str | None) -> Task:
    return _replace(task, claim_id=claim_id)


def set_session_key(task: Task, session_key: str) -> Task:
    return _replace(task, session_key=session_key)


def update_progress(task: Task, report: Progress, hung_ms: Millis, now: Millis) -> Task:
    """Apply a progress report. Within an attempt, progress never decreases unless the agent resets it.

    If the agent was warned, the abort of the attempt is postponed.
    """
    percent = task.progress_percent if report.percent is None else report.percent
    return _replace(
        task,
        progress_percent=percent if report.is_reset else max(percent, task.progress_percent),
        current_step=task.current_step if report.step is None else report.step,
        overdue_at=task.overdue_at if task.warned_at is None else now + hung_ms,
        progress_at=now,
        updated_at=now,
    )


def mark_warned(task: Task, hung_ms: Millis, now: Millis) -> Task:
    return _replace(task, warned_at=now, overdue_at=now + hung_ms, updated_at=now)


def release(task: Task, now: Millis) -> Task:
    """Give the attempt back. It does not count as an attempt of the task."""
    waits_for = _waits_for(task.unmet_dependencies, task.available_at, now)
    changes = {**_NO_ATTEMPT, **_NO_HOLDER, "attempt": task.attempt - 1, "waits_for": waits_for}
    return _transition(task, Verb.RELEASE, now, **changes)


def pause(task: Task, now: Millis) -> Task:
    """Pause the task and end its attempt: later reports from its agent are refused. The checkpoint is kept."""
    return _transition(task, Verb.PAUSE, now, **_NO_ATTEMPT, **_NO_HOLDER, waits_for=WaitsFor.NOTHING)


def resume(task: Task, now: Millis) -> Task:
    waits_for = _waits_for(task.unmet_dependencies, task.available_at, now)
    return _transition(task, Verb.RESUME, now, waits_for=waits_for)


# -- end, retry and archive --------------------------------------------------------------------------------------


def complete(task: Task, now: Millis) -> Task:
    # Keep the token, so that a repeated report is recognised.
    return _transition(
        task,
        Verb.COMPLETE,
        now,
        waits_for=WaitsFor.NOTHING,
        progress_percent=100,
        timeout_at=None,
        overdue_at=None,
        completed_at=now,
    )


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt ended without a result."""

    reason: str
    jitter: float
    """Random number in [0, 1) for the backoff."""
    retryable: bool = True
    raises_priority: bool = False


def fail(task: Task, verb: Verb, failure: Failure, backoff_max_ms: Millis, now: Millis) -> Task:
    """End the attempt by FAIL or ABORT. If the failure is retryable and retries remain, the task is retried after a
    backoff; otherwise it is FAILED and final."""
    policy = Policy(task.max_retries + 1, task.retry_backoff_seconds * SECOND, 2.0, backoff_max_ms)
    retry_at = next_attempt_at(policy, attempt=task.retry_count + 1, now=now, jitter=failure.jitter)
    # Keep the agent and the token, so that a repeated report of this failure is recognised.
    if retry_at is None or not failure.retryable:
        return _end(task, Verb.FAIL, failure.reason, now, **_NO_ATTEMPT)
    raised = set_priority(task, min(ranking.PRIORITY_MAX, task.priority + 1)) if failure.raises_priority else task
    return _transition(
        raised,
        verb,
        now,
        **_NO_ATTEMPT,
        waits_for=WaitsFor.TIME,
        available_at=retry_at,
        retry_count=task.retry_count + 1,
        reason=failure.reason,
        failed_at=now,
    )


def cancel(task: Task, reason: str, now: Millis) -> Task:
    """Make the task ABORTED and final. If it waits for a retry, its last agent and token are kept."""
    awaits_retry = task.status in (State.FAILED, State.ABORTED)
    return _end(task, Verb.CANCEL, reason, now, **({} if awaits_retry else _NO_ATTEMPT | _NO_HOLDER))


def fail_dependency(task: Task, reason: str, now: Millis) -> Task:
    return _end(task, Verb.FAIL_DEPENDENCY, reason, now)


def _end(task: Task, verb: Verb, reason: str, now: Millis, **changes: object) -> Task:
    """End the task without a result and without a retry."""
    end = {"waits_for": WaitsFor.NOTHING, "final": 1, "dependents_pending": 1, "reason": reason, "failed_at": now}
    return _transition(task, verb, now, **end, **changes)


def requeue(task: Task, now: Millis) -> Task:
    """Make the task PENDING again after its backoff."""
    return _requeue(task, task.unmet_dependencies, min(task.available_at, now), now)


def retry(task: Task, unmet_count: int, now: Millis) -> Task:
    """Make the task PENDING again on a user's request. The retry count is reset, and the checkpoint is kept."""
    return _replace(_requeue(task, unmet_count, now, now), retry_count=0)


def _requeue(task: Task, unmet_count: int, available_at: Millis, now: Millis) -> Task:
    return _transition(
        task,
        Verb.REQUEUE,
        now,
        **_NO_ATTEMPT,
        **_NO_HOLDER,
        final=0,
        dependents_pending=0,
        reason=None,
        failed_at=None,
        available_at=available_at,
        unmet_dependencies=unmet_count,
        waits_for=_waits_for(unmet_count, available_at, now),
    )


def archive(task: Task, now: Millis) -> Task:
    return _transition(task, Verb.ARCHIVE, now, waits_for=WaitsFor.NOTHING)


# -- changes without a transition --------------------------------------------------------------------------------


def add_costs(task: Task, costs: tuple[Cost, ...]) -> Task:
    return _replace(
        task,
        usd_micros=task.usd_micros + sum(cost.usd_micros for cost in costs),
        input_tokens=task.input_tokens + sum(cost.input_tokens for cost in costs),
        output_tokens=task.output_tokens + sum(cost.output_tokens for cost in costs),
    )


def set_priority(task: Task, priority: int) -> Task:
    after = _replace(task, priority=priority)
    if priority == task.priority or task.ranked_by is Strategy.FAIR:
        return after
    return _replace(after, rank=ranking.rank_of(task.ranked_by, after))


def make_available(task: Task, now: Millis) -> Task:
    """Recompute `waits_for` of a PENDING task whose start time has passed."""
    return _replace(task, waits_for=_waits_for(task.unmet_dependencies, task.available_at, now), updated_at=now)


def set_dependencies(task: Task, dependency_count: int, unmet_count: int, now: Millis) -> Task:
    # A PAUSED task gets its `waits_for` when it is resumed.
    is_pending = task.status is State.PENDING
    return _replace(
        task,
        dependency_count=dependency_count,
        unmet_dependencies=unmet_count,
        waits_for=_waits_for(unmet_count, task.available_at, now) if is_pending else task.waits_for,
        updated_at=now,
    )


def meet_dependency(task: Task, now: Millis) -> Task:
    return set_dependencies(task, task.dependency_count, max(0, task.unmet_dependencies - 1), now)


def set_dependents_pending(task: Task, *, pending: bool) -> Task:
    """Mark an ended task that still has blocked dependents, or clear the mark."""
    return _replace(task, dependents_pending=int(pending))


def apply_patch(task: Task, command: Patch, overdue_ms: Millis, now: Millis) -> Task:
    after = _replace(task if command.priority is None else set_priority(task, command.priority), updated_at=now)
    estimated_end = command.estimated_completion_at
    if estimated_end is UNSET or estimated_end == task.estimated_completion_at:
        return after
    after = _replace(after, estimated_completion_at=estimated_end)
    if task.status is not State.RUNNING:
        return after
    return _replace(after, warned_at=None, overdue_at=None if estimated_end is None else estimated_end + overdue_ms)
