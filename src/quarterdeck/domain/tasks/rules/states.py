"""The life of a task: its states, and each step from one to the next as a function of the row and the moment."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from quarterdeck.core.clock import MINUTE, SECOND, Millis
from quarterdeck.core.retry import Policy, delay
from quarterdeck.core.state_machine import Machine
from quarterdeck.domain.tasks.model.commands import Cost, Create, Patch
from quarterdeck.domain.tasks.model.rows import State, Strategy, Task, Verb, Waits

_OPEN = (State.PENDING, State.ASSIGNED, State.RUNNING)
TASK: Machine[State, Verb] = Machine(
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
"""An agent has it."""
DEPENDENCY_FAILED = "dependency_failed"
DEPENDENCY_CYCLE = "dependency_cycle"
EMPTY = "{}"
_replace = msgspec.structs.replace


def is_over(row: Task) -> bool:
    """Whether nothing but a hand moves it any more."""
    return row.status in (State.COMPLETED, State.ARCHIVED) or bool(row.final)


class Rank(msgspec.Struct, frozen=True):
    """Where a task stands among those that wait."""

    strategy: Strategy
    turn: int


def created(ask: Create, rank: Rank, unmet: int, now: Millis) -> Task:
    assert ask.caller is not None
    available_at = max(now, ask.run_at or now)
    return Task(
        id=ask.id,
        zone_id=ask.zone_id,
        task_type=ask.task_type,
        status=State.PENDING,
        priority=ask.priority,
        agent_id=None,
        session_key=None,
        progress_percent=0,
        current_step=None,
        estimated_duration_minutes=ask.estimated_duration_minutes,
        estimated_completion_at=None,
        retry_count=0,
        max_retries=ask.max_retries,
        retry_backoff_seconds=ask.retry_backoff_seconds,
        on_dependency_failure=ask.on_dependency_failure,
        class_id=ask.class_id,
        turn=rank.turn,
        ranked_by=rank.strategy,
        waits=_awaited(unmet, available_at, now),
        depends=len(ask.depends_on),
        unmet=unmet,
        available_at=available_at,
        timeout_seconds=ask.timeout_seconds,
        timeout_at=None,
        attempt=0,
        attempt_token=None,
        claim_id=None,
        final=0,
        reason=None,
        spreads=0,
        warned_at=None,
        progress_at=None,
        overdue_at=None,
        usd_micros=0,
        input_tokens=0,
        output_tokens=0,
        created_by=ask.caller.subject,
        application_id=ask.caller.client_id,
        trace=ask.trace,
        created_at=now,
        updated_at=now,
        assigned_at=None,
        started_at=None,
        completed_at=None,
        failed_at=None,
    )


def awaited(row: Task, now: Millis) -> int:
    """What a task that is PENDING waits for."""
    return _awaited(row.unmet, row.available_at, now)


def _awaited(unmet: int, available_at: Millis, now: Millis) -> int:
    """Others first: until they are done its moment does not matter."""
    if unmet:
        return Waits.OTHERS
    return Waits.A_MOMENT if available_at > now else Waits.NOTHING


# -- attempts ----------------------------------------------------------------------------------------------------


class Holding(msgspec.Struct, frozen=True):
    """Who begins an attempt."""

    agent_id: str
    token: str
    claim_id: str | None = None
    session_key: str | None = None


def assigned(row: Task, holding: Holding, now: Millis) -> Task:
    """An attempt is counted when it is given out, whatever becomes of it."""
    return _replace(
        row,
        status=State.ASSIGNED,
        agent_id=holding.agent_id,
        attempt=row.attempt + 1,
        attempt_token=holding.token,
        claim_id=holding.claim_id,
        session_key=holding.session_key,
        progress_percent=0,
        current_step=None,
        warned_at=None,
        progress_at=None,
        overdue_at=None,
        timeout_at=_timeout(row, now),
        assigned_at=now,
        updated_at=now,
    )


def launching(row: Task, until: Millis) -> Task:
    """Its time does not run before it has begun; that of its launch does."""
    return _replace(row, timeout_at=until)


def started(row: Task, overdue_ms: Millis, now: Millis) -> Task:
    """`overdue_ms`: how long past its estimate its agent is warned."""
    expected = row.estimated_completion_at
    if row.estimated_duration_minutes is not None:
        expected = now + row.estimated_duration_minutes * MINUTE
    return _replace(
        row,
        status=State.RUNNING,
        estimated_completion_at=expected,
        overdue_at=None if expected is None else expected + overdue_ms,
        timeout_at=_timeout(row, now),
        started_at=now,
        progress_at=now,
        updated_at=now,
    )


def claimed(row: Task, claim_id: str | None) -> Task:
    """By whom it was assigned to."""
    return _replace(row, claim_id=claim_id)


def _timeout(row: Task, now: Millis) -> Millis | None:
    return None if row.timeout_seconds is None else now + row.timeout_seconds * SECOND


class Report(msgspec.Struct, frozen=True):
    percent: int | None
    step: str | None
    resets: bool = False


def progressed(row: Task, said: Report, now: Millis) -> Task:
    """Within an attempt progress never falls, unless its agent says that it began again."""
    percent = row.progress_percent if said.percent is None else said.percent
    return _replace(
        row,
        progress_percent=percent if said.resets else max(percent, row.progress_percent),
        current_step=row.current_step if said.step is None else said.step,
        progress_at=now,
        updated_at=now,
    )


def in_session(row: Task, session_key: str) -> Task:
    return _replace(row, session_key=session_key)


def released(row: Task, now: Millis) -> Task:
    """As if the attempt had never been given out."""
    back = _let_go(row, State.PENDING, now)
    return _replace(back, attempt=row.attempt - 1, waits=awaited(back, now))


def paused(row: Task, now: Millis) -> Task:
    """Its holder's word counts no longer. What it has saved stays."""
    return _replace(_let_go(row, State.PAUSED, now), waits=Waits.NOTHING)


def resumed(row: Task, now: Millis) -> Task:
    back = _replace(row, status=State.PENDING, updated_at=now)
    return _replace(back, waits=awaited(back, now))


def _let_go(row: Task, status: State, now: Millis) -> Task:
    return _replace(
        row,
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


# -- ends --------------------------------------------------------------------------------------------------------


def completed(row: Task, now: Millis) -> Task:
    """The token stays: whoever says it twice is answered twice."""
    return _replace(
        row,
        status=State.COMPLETED,
        waits=Waits.NOTHING,
        progress_percent=100,
        timeout_at=None,
        overdue_at=None,
        completed_at=now,
        updated_at=now,
    )


class Setback(msgspec.Struct, frozen=True):
    """Why an attempt ended without a result, and what chance says about the pause after it."""

    reason: str
    chance: float
    retryable: bool = True
    raises_priority: bool = False


def set_back(row: Task, to: State, why: Setback, cap_ms: Millis, now: Millis) -> Task:
    """FAILED or ABORTED: with another attempt to come after the backoff while retries remain, else FAILED for good."""
    exhausted = row.retry_count >= row.max_retries
    ended = _replace(
        _let_go(row, to, now), agent_id=row.agent_id, attempt_token=row.attempt_token, reason=why.reason, failed_at=now
    )
    if not why.retryable or exhausted:
        return _replace(ended, status=State.FAILED, waits=Waits.NOTHING, final=1, spreads=1)
    policy = Policy(0, row.retry_backoff_seconds * SECOND, 2.0, cap_ms)
    return _replace(
        ended,
        waits=Waits.A_MOMENT,
        available_at=now + delay(policy, attempt=row.retry_count + 1, chance=why.chance),
        retry_count=row.retry_count + 1,
        priority=min(10, row.priority + 1) if why.raises_priority else row.priority,
    )


def is_exhausted(before: Task, after: Task, *, retryable: bool) -> bool:
    """Whether it failed for good because no retries were left."""
    return bool(after.final) and retryable and before.retry_count >= before.max_retries


def canceled(row: Task, reason: str, now: Millis) -> Task:
    """ABORTED for good."""
    over = _let_go(row, State.ABORTED, now)
    return _replace(over, waits=Waits.NOTHING, final=1, spreads=1, reason=reason, failed_at=now)


def failed_by_dependency(row: Task, reason: str, now: Millis) -> Task:
    return _replace(
        row, status=State.FAILED, waits=Waits.NOTHING, final=1, spreads=1, reason=reason, failed_at=now, updated_at=now
    )


def given_up(row: Task, reason: str, now: Millis) -> Task:
    """It would have been tried again after its backoff; now it is not."""
    return _replace(
        row, status=State.ABORTED, waits=Waits.NOTHING, final=1, spreads=1, reason=reason, failed_at=now, updated_at=now
    )


def requeued(row: Task, now: Millis) -> Task:
    """Its backoff is over."""
    back = _replace(
        _let_go(row, State.PENDING, now),
        final=0,
        spreads=0,
        reason=None,
        failed_at=None,
        available_at=min(row.available_at, now),
    )
    return _replace(back, waits=awaited(back, now))


def retried(row: Task, now: Millis) -> Task:
    """By hand, it begins anew: with all its retries, and what it had saved."""
    back = _replace(_let_go(row, State.PENDING, now), final=0, spreads=0, reason=None, retry_count=0, available_at=now)
    return _replace(back, waits=awaited(back, now), failed_at=None)


def archived(row: Task, now: Millis) -> Task:
    return _replace(row, status=State.ARCHIVED, waits=Waits.NOTHING, updated_at=now)


def charged(row: Task, costs: tuple[Cost, ...]) -> Task:
    return _replace(
        row,
        usd_micros=row.usd_micros + sum(cost.usd_micros for cost in costs),
        input_tokens=row.input_tokens + sum(cost.input_tokens for cost in costs),
        output_tokens=row.output_tokens + sum(cost.output_tokens for cost in costs),
    )


# -- waiting and watching ----------------------------------------------------------------------------------------


def ranked(row: Task, rank: Rank) -> Task:
    return _replace(row, turn=rank.turn, ranked_by=rank.strategy)


def called_up(row: Task, now: Millis) -> Task:
    """The moment that it was to wait for has come."""
    return _replace(row, waits=awaited(row, now), updated_at=now)


def waiting_for(row: Task, depends: int, unmet: int, now: Millis) -> Task:
    changed = _replace(row, depends=depends, unmet=unmet, updated_at=now)
    return _replace(changed, waits=awaited(changed, now)) if row.status is State.PENDING else changed


def unblocked(row: Task, now: Millis) -> Task:
    """One of those it waited for is out of its way."""
    return waiting_for(row, row.depends, max(0, row.unmet - 1), now)


def spreading(row: Task, *, spreads: bool) -> Task:
    """Whether some of those that depend on it are still to hear of its end."""
    return _replace(row, spreads=int(spreads))


def warned(row: Task, look_again_at: Millis, now: Millis) -> Task:
    return _replace(row, warned_at=now, overdue_at=look_again_at, updated_at=now)


def watched(row: Task, look_again_at: Millis) -> Task:
    """It was warned, and has moved since."""
    return _replace(row, overdue_at=look_again_at)


def patched(row: Task, ask: Patch, overdue_ms: Millis, now: Millis) -> Task:
    expected = row.estimated_completion_at if ask.estimated_completion_at is UNSET else ask.estimated_completion_at
    after = _replace(
        row,
        priority=row.priority if ask.priority is None else ask.priority,
        estimated_completion_at=expected,
        updated_at=now,
    )
    if row.status is not State.RUNNING or expected == row.estimated_completion_at:
        return after
    return _replace(after, warned_at=None, overdue_at=None if expected is None else expected + overdue_ms)
