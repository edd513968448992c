"""Problems that invocation commands return. Codes and members are public; clients match on them."""

from __future__ import annotations

from quarterdeck.core.errors import Conflict, Forbidden, Invalid, KeyConflict, NotFound, StateConflict
from quarterdeck.domain.invocations.model import Invocation


def not_found(invocation_id: str) -> NotFound:
    return NotFound("invocation_not_found", f"Invocation {invocation_id!r} does not exist in this zone.")


def service_not_found(service_id: str) -> NotFound:
    return NotFound(
        "agent_service_not_found", f"Service {service_id!r} does not exist in this zone or is not registered."
    )


def session_not_found(session_id: str) -> NotFound:
    return NotFound("agent_session_not_found", f"Session {session_id!r} does not exist in this zone or has ended.")


def invoker_required(application_id: str) -> Forbidden:
    return Forbidden(
        "invoker_ownership_required",
        f"The caller may not invoke services for application {application_id!r} or cancel its invocations.",
    )


def service_ownership_required(application_id: str) -> Forbidden:
    return Forbidden(
        "service_ownership_required",
        f"The service belongs to application {application_id!r}. Only callers that may act for it can claim the "
        "service's invocations and report on them.",
    )


def service_is_pushed(service_id: str) -> Conflict:
    return Conflict(
        "service_is_pushed",
        f"Service {service_id!r} uses push delivery: the server sends its invocations, and they cannot be claimed.",
    )


def key_required() -> Invalid:
    return Invalid(
        "idempotency_key_required",
        "An invocation needs an idempotency key. Send `idempotency_key` in the body or the Idempotency-Key header.",
        field="idempotency_key",
    )


def key_conflict(key: str) -> KeyConflict:
    return KeyConflict(
        "idempotency_key_conflict",
        f"Key {key!r} was already used for this service with different parameters. Use a new key for a new invocation.",
    )


def token_required() -> Conflict:
    return Conflict("attempt_token_required", "Send the `attempt_token` that the claim or start returned.")


def stale_attempt(row: Invocation) -> Conflict:
    return Conflict(
        "stale_attempt",
        f"This attempt has ended. The invocation is now {row.status}; attempts so far: {row.attempts}. The report was "
        "ignored; discard the work.",
    )


def not_startable(row: Invocation, reason: str) -> StateConflict:
    return StateConflict("invocation_not_startable", f"The invocation cannot be started: {reason}.")


def not_cancelable(row: Invocation) -> StateConflict:
    return StateConflict("invocation_not_cancelable", f"The invocation has ended: it is {row.status}.")


def not_completable(row: Invocation) -> StateConflict:
    return StateConflict("invocation_not_completable", f"The invocation is not running: it is {row.status}.")
