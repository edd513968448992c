"""Explains in sentences why an invocation is in its state, and what changes that state next."""

from __future__ import annotations

from quarterdeck.core.clock import Millis, iso
from quarterdeck.domain.invocations.model import AttemptOrigin, Invocation, InvocationExplanation, State
from quarterdeck.domain.invocations.rules import states

_ORIGIN_PHRASES = {
    AttemptOrigin.CLAIM: "was claimed",
    AttemptOrigin.START: "was started by id",
    AttemptOrigin.PUSH: "is being pushed to the service's endpoint",
}


def explain(
    row: Invocation, now: Millis, ended_session_id: str | None = None, suspended_session_id: str | None = None
) -> InvocationExplanation:
    sentences, next_steps = _explain_state(row, now)
    if suspended_session_id is not None and row.status is State.PENDING:
        sentences.insert(0, f"It cannot be claimed because its session {suspended_session_id} is suspended.")
        next_steps = ["Resume the session."]
    if ended_session_id is not None and row.status not in states.ENDED_STATES:
        sentences.insert(0, f"It will be canceled because its session {ended_session_id} has ended.")
        next_steps = ["A sweep will cancel it."]
    if row.error_json is not None and row.status is not State.SUCCEEDED:
        sentences.append(f"The last error was {row.error_json[:500]}.")
    return InvocationExplanation(states.view(row), sentences, next_steps)


def _explain_state(row: Invocation, now: Millis) -> tuple[list[str], list[str]]:
    attempts_sentence = f"{row.attempts} of {row.max_attempts} attempts have started."
    if row.status is State.PENDING:
        return _explain_pending(row, now, attempts_sentence)
    if row.status is State.RUNNING:
        return _explain_running(row, attempts_sentence)
    if row.status is State.CANCELED:
        return [f"It was canceled: {row.cancel_reason or 'requested'}.", attempts_sentence], []
    explanations = {
        State.SUCCEEDED: "Its holder reported success.",
        State.FAILED: "Its holder reported a failure that is not retryable.",
        State.TIMED_OUT: f"Its last attempt did not end within its timeout of {row.timeout_ms} ms.",
        State.DEAD: "Its last attempt failed and no attempts are left.",
    }
    return [explanations[row.status], attempts_sentence], []


def _explain_pending(row: Invocation, now: Millis, attempts_sentence: str) -> tuple[list[str], list[str]]:
    if row.available_at > now:
        return [f"It is waiting for its backoff to end at {iso(row.available_at)}.", attempts_sentence], [
            f"It can be claimed from {iso(row.available_at)}."
        ]
    return ["It is waiting for a worker of its service.", attempts_sentence], [
        "A worker's claim for the service, or a start by id, starts its next attempt."
    ]


def _explain_running(row: Invocation, attempts_sentence: str) -> tuple[list[str], list[str]]:
    origin_phrase = _ORIGIN_PHRASES[row.begun_by] if row.begun_by else "has started"
    sentences = [f"Attempt {row.attempts} {origin_phrase}; its holder is {row.holder!r}.", attempts_sentence]
    next_steps = ["Its holder reports the outcome."]
    if row.cancel_requested_at is not None:
        sentences.insert(0, f"Cancellation was requested: {row.cancel_reason or 'requested'}.")
        next_steps = ["It is canceled when its holder reports, its lease expires or its deadline passes."]
    if row.lease_expires_at is not None:
        next_steps.append(f"Its lease ends at {iso(row.lease_expires_at)} unless a heartbeat extends it.")
    if row.deadline_at is not None:
        next_steps.append(f"Its deadline is {iso(row.deadline_at)}.")
    return sentences, next_steps
