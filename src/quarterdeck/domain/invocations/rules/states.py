"""The states and transitions of an invocation, the functions that compute a changed row, and the response views."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.retry import Policy, next_attempt_at
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.core.views import view_of
from quarterdeck.domain.invocations.model import (
    AttemptOrigin,
    Enqueue,
    Invocation,
    InvocationView,
    LeaseView,
    RetryPolicy,
    State,
    Verb,
)

INVOCATION_STATES: StateMachine[State, Verb] = StateMachine(
    "invocation",
    State,
    State.PENDING,
    {
        Verb.BEGIN: {State.PENDING: State.RUNNING},
        Verb.SUCCEED: {State.RUNNING: State.SUCCEEDED},
        Verb.FAIL: {State.RUNNING: State.FAILED},
        Verb.RETRY: {State.RUNNING: State.PENDING},
        Verb.RELEASE: {State.RUNNING: State.PENDING},
        Verb.TIME_OUT: {State.RUNNING: State.TIMED_OUT},
        Verb.EXHAUST: {State.RUNNING: State.DEAD},
        Verb.CANCEL: {State.PENDING: State.CANCELED, State.RUNNING: State.CANCELED},
    },
)
ENDED_STATES = frozenset(INVOCATION_STATES.terminal_states())
DEADLINE_EXCEEDED = "deadline_exceeded"
LEASE_EXPIRED = "lease_expired"
"""Error codes of attempts that ended without a report."""
_replace = msgspec.structs.replace


def new_invocation(command: Enqueue, application_id: str, invoker: str, now: Millis) -> Invocation:
    return Invocation(
        id=command.id,
        zone_id=command.zone_id,
        service_id=command.service_id,
        application_id=application_id,
        source_session_id=command.source_session_id,
        target_session_id=command.target_session_id,
        idempotency_key=command.idempotency_key,
        digest=command.request_digest,
        method=command.method,
        params_json=command.params,
        metadata_json=command.metadata,
        status=State.PENDING,
        attempts=0,
        max_attempts=command.retry_policy.max_attempts,
        timeout_ms=command.timeout_ms,
        retry_policy_json=msgspec.json.encode(command.retry_policy).decode(),
        result_json=None,
        error_json=None,
        parked=0,
        available_at=now,
        deadline_at=None,
        lease_expires_at=None,
        attempt_token=None,
        begun_by=None,
        holder=None,
        claim_id=None,
        cancel_requested_at=None,
        cancel_reason=None,
        invoker=invoker,
        trace=command.trace,
        started_at=None,
        completed_at=None,
        created_at=now,
        updated_at=now,
    )


class Attempt(msgspec.Struct, frozen=True):
    origin: AttemptOrigin
    holder: str
    token: str
    lease_ms: int
    claim_id: str | None = None


def start_attempt(row: Invocation, attempt: Attempt, now: Millis) -> Invocation:
    # The attempt counts from here, not from its failure: a worker that dies must still use up its attempts.
    deadline = now + row.timeout_ms
    # Only workers that claim are expected to send heartbeats. Other attempts are leased until the deadline.
    lease_expires_at = now + attempt.lease_ms if attempt.origin is AttemptOrigin.CLAIM else deadline
    return _replace(
        row,
        status=State.RUNNING,
        attempts=row.attempts + 1,
        deadline_at=deadline,
        lease_expires_at=lease_expires_at,
        attempt_token=attempt.token,
        begun_by=attempt.origin,
        holder=attempt.holder,
        claim_id=attempt.claim_id,
        parked=0,
        started_at=now,
        updated_at=now,
    )


def extend_lease(row: Invocation, lease_ms: int, now: Millis) -> Invocation:
    lease_expires_at = max(row.lease_expires_at or 0, now + lease_ms)
    return _replace(row, lease_expires_at=lease_expires_at, updated_at=now)


def renew_lease(row: Invocation, lease_ms: int, now: Millis) -> Invocation:
    """Renew the lease for a repeated claim.

    The new expiry always differs from the old one, so that a late release of the first response has no effect.
    """
    lease_expires_at = max((row.lease_expires_at or 0) + 1, now + lease_ms)
    return _replace(row, lease_expires_at=lease_expires_at, updated_at=now)


def park(row: Invocation) -> Invocation:
    return _replace(row, parked=1)


def release(row: Invocation, now: Millis) -> Invocation:
    """Undo the start of the attempt, so that it does not count."""
    return _set_pending(_replace(row, attempts=row.attempts - 1, attempt_token=None), now, now)


def end(
    row: Invocation, status: State, now: Millis, *, result: str | None = None, error: str | None = None
) -> Invocation:
    return _replace(
        row,
        status=status,
        result_json=result if result is not None else row.result_json,
        error_json=error if error is not None else row.error_json,
        lease_expires_at=None,
        claim_id=None,
        parked=0,
        completed_at=now,
        updated_at=now,
    )


def cancel(row: Invocation, reason: str, now: Millis) -> Invocation:
    return _replace(
        end(row, State.CANCELED, now),
        cancel_requested_at=row.cancel_requested_at or now,
        cancel_reason=row.cancel_reason or reason,
    )


def request_cancel(row: Invocation, reason: str, now: Millis) -> Invocation:
    if row.cancel_requested_at is not None:
        return row
    return _replace(row, cancel_requested_at=now, cancel_reason=reason, updated_at=now)


def fail_attempt(row: Invocation, error: str, now: Millis, *, deadline_passed: bool = False) -> Invocation:
    """Retry after a backoff, or end the invocation if no attempts are left or a cancel was requested."""
    if row.cancel_requested_at is not None:
        return end(row, State.CANCELED, now, error=error)
    policy = msgspec.json.decode(row.retry_policy_json, type=RetryPolicy)
    backoff = Policy(row.max_attempts, policy.backoff_ms, policy.multiplier, policy.max_backoff_ms, jitter_ratio=0)
    retry_at = next_attempt_at(backoff, attempt=row.attempts, now=now, jitter=0)
    if retry_at is not None:
        return _set_pending(_replace(row, error_json=error), retry_at, now)
    return end(row, State.TIMED_OUT if deadline_passed else State.DEAD, now, error=error)


def _set_pending(row: Invocation, available_at: Millis, now: Millis) -> Invocation:
    return _replace(
        row,
        status=State.PENDING,
        available_at=available_at,
        deadline_at=None,
        lease_expires_at=None,
        begun_by=None,
        holder=None,
        claim_id=None,
        updated_at=now,
    )


def is_overdue(row: Invocation, now: Millis) -> bool:
    """Whether the deadline of its attempt has passed or the lease has expired."""
    return row.status is State.RUNNING and (
        (row.deadline_at is not None and row.deadline_at <= now)
        or (row.lease_expires_at is not None and row.lease_expires_at <= now)
    )


def fail_overdue(row: Invocation, now: Millis) -> Invocation:
    deadline_passed = row.deadline_at is not None and row.deadline_at <= now
    error = {"code": DEADLINE_EXCEEDED if deadline_passed else LEASE_EXPIRED, "attempt": row.attempts}
    return fail_attempt(row, msgspec.json.encode(error).decode(), now, deadline_passed=deadline_passed)


# -- response ----------------------------------------------------------------------------------------------------

_JSON_FIELDS = {
    "params": "params_json",
    "metadata": "metadata_json",
    "retry_policy": "retry_policy_json",
    "result": "result_json",
    "error": "error_json",
}
view = view_of(Invocation, InvocationView, **_JSON_FIELDS)
lease_view = view_of(
    Invocation,
    LeaseView,
    **_JSON_FIELDS,
    attempt="attempts",
    attempt_token=lambda row: row.attempt_token or "",
    lease_expires_at=lambda row: iso(row.lease_expires_at or row.deadline_at or row.updated_at),
)
