"""The words for no, in one place."""

from __future__ import annotations

from quarterdeck.core.errors import Conflict, Forbidden, Invalid, KeyConflict, NotFound, StateConflict
from quarterdeck.domain.invocations.model import Invocation


def not_found(invocation_id: str) -> NotFound:
    return NotFound("invocation_not_found", f"There is no invocation {invocation_id!r} in this zone.")


def service_not_found(service_id: str) -> NotFound:
    return NotFound("agent_service_not_found", f"There is no service {service_id!r} in this zone.")


def session_not_found(session_id: str) -> NotFound:
    return NotFound("agent_session_not_found", f"There is no live session {session_id!r} in this zone.")


def invoker_required(application_id: str) -> Forbidden:
    return Forbidden("invoker_ownership_required", f"This token may not invoke for the application {application_id!r}.")


def service_ownership_required(application_id: str) -> Forbidden:
    return Forbidden(
        "service_ownership_required",
        f"Only the application {application_id!r}, whose service this is, may take and report its invocations.",
    )


def service_is_pushed(service_id: str) -> Conflict:
    return Conflict("service_is_pushed", f"The invocations of {service_id!r} are pushed to its endpoint, not claimed.")


def key_required() -> Invalid:
    return Invalid(
        "idempotency_key_required",
        "An invocation needs a key: the body's idempotency_key, or the Idempotency-Key header.",
        field="idempotency_key",
    )


def key_conflict(key: str) -> KeyConflict:
    return KeyConflict(
        "idempotency_key_conflict",
        f"The key {key!r} was already used for this service with other params. Use a new key for a new call.",
    )


def token_required() -> Conflict:
    return Conflict(
        "attempt_token_required",
        "Say which attempt this is about: give the attempt_token that the claim or the start was answered with.",
    )


def stale_attempt(row: Invocation) -> Conflict:
    return Conflict(
        "stale_attempt",
        f"This token is of an attempt that is over; the invocation is {row.status} after {row.attempts} attempts. "
        "Whatever was done for it must not count.",
    )


def not_startable(row: Invocation, reason: str) -> StateConflict:
    return StateConflict("invocation_not_startable", f"The invocation cannot begin: {reason}.")


def not_cancelable(row: Invocation) -> StateConflict:
    return StateConflict("invocation_not_cancelable", f"The invocation has ended: it is {row.status}.")


def not_completable(row: Invocation) -> StateConflict:
    return StateConflict("invocation_not_completable", f"The invocation is not running: it is {row.status}.")
