"""Why an invocation is as it is, in sentences."""

from __future__ import annotations

from quarterdeck.core.clock import Millis, iso
from quarterdeck.domain.invocations.model import Begun, Invocation, InvocationExplanation, State
from quarterdeck.domain.invocations.rules import states

_WAITS = {
    Begun.CLAIM: "was claimed",
    Begun.START: "was started by a worker that had learnt of it elsewhere",
    Begun.PUSH: "is being pushed to the service's endpoint",
}


def explain(
    row: Invocation, now: Millis, lost_session: str | None = None, asleep: str | None = None
) -> InvocationExplanation:
    why, following = _told(row, now)
    if asleep is not None and row.status is State.PENDING:
        why.insert(0, f"Its session {asleep} is suspended, so it is not handed out.")
        following = ["Resume the session."]
    if lost_session is not None and row.status not in states.ENDED:
        why.insert(0, f"Its session {lost_session} has ended, so it can begin no more.")
        following = ["A sweep cancels it."]
    if row.error_json is not None and row.status is not State.SUCCEEDED:
        why.append(f"The last error was {row.error_json[:500]}.")
    return InvocationExplanation(states.view(row), why, following)


def _told(row: Invocation, now: Millis) -> tuple[list[str], list[str]]:
    tried = f"{row.attempts} of {row.max_attempts} attempts have begun."
    if row.status is State.PENDING:
        return _pending(row, now, tried)
    if row.status is State.RUNNING:
        return _running(row, tried)
    if row.status is State.CANCELED:
        return [f"It was canceled: {row.cancel_reason or 'requested'}.", tried], []
    meaning = {
        State.SUCCEEDED: "Its holder reported success.",
        State.FAILED: "Its holder reported a failure that must not be tried again.",
        State.TIMED_OUT: f"The deadline of its last attempt ({row.timeout_ms} ms) passed.",
        State.DEAD: "Its last attempt failed, and no attempts are left.",
    }
    return [meaning[row.status], tried], []


def _pending(row: Invocation, now: Millis, tried: str) -> tuple[list[str], list[str]]:
    if row.available_at > now:
        return [f"It waits until {iso(row.available_at)} before its next attempt.", tried], [
            f"It is handed out from {iso(row.available_at)} on."
        ]
    return ["It waits for a worker of its service.", tried], [
        "A claim of the service, or a start, begins its next attempt."
    ]


def _running(row: Invocation, tried: str) -> tuple[list[str], list[str]]:
    how = _WAITS[row.begun_by] if row.begun_by else "has begun"
    why = [f"Its attempt {row.attempts} {how}; the holder is {row.holder!r}.", tried]
    following = ["Its holder completes it."]
    if row.cancel_requested_at is not None:
        why.insert(0, f"Its cancellation was asked for: {row.cancel_reason or 'requested'}.")
        following = ["It is canceled when its holder says so, or its lease or deadline passes."]
    if row.lease_expires_at is not None:
        following.append(f"Its lease ends at {iso(row.lease_expires_at)} unless a heartbeat prolongs it.")
    if row.deadline_at is not None:
        following.append(f"Its deadline is {iso(row.deadline_at)}.")
    return why, following
