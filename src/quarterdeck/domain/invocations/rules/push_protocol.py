"""The request to a push endpoint, and what its response means.

| response                              | outcome                                                 |
|---------------------------------------|---------------------------------------------------------|
| 2xx                                   | succeeded, with the body as the result                  |
| 4xx                                   | failed, not retried                                     |
| any other status, an invalid response | a failed attempt, retried                               |
| a blocked address, no connection      | a failed attempt, retried; the error code says which    |
| the deadline passed                   | an overdue attempt (`states.is_overdue`)                |

A result must be complete. A 2xx response above the size limit therefore counts as a failed attempt and is retried. A
4xx response is not retried, whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from quarterdeck.core import webhook_signing
from quarterdeck.core.clock import iso_or_none
from quarterdeck.domain.invocations.model import Invocation, PushPayload

DEPTH_MAX = 64
"""Maximum nesting of a result, the same as for request bodies."""
EXCERPT_MAX_BYTES = 4_096
"""Maximum bytes of a response that an error quotes."""


class PushOutcome(msgspec.Struct, frozen=True):
    """The outcome of a push, as the server reports it to the invocation lane."""

    code: str
    """One of CODES. Metrics count pushes by it."""
    status: Literal["succeeded", "failed"]
    result: str | None = None
    error: str | None = None
    retryable: bool = True


SUCCEEDED = "succeeded"
REJECTED = "push_rejected"
FAILED = "push_failed"
REDIRECTED = "push_redirected"
REFUSED = "push_refused"
UNREACHABLE = "push_unreachable"
TOO_LARGE = "push_answer_too_large"
GARBLED = "push_answer_garbled"
TIMED_OUT = "push_timed_out"
CODES = (SUCCEEDED, REJECTED, FAILED, REDIRECTED, REFUSED, UNREACHABLE, TOO_LARGE, GARBLED, TIMED_OUT)


def secret_numbers(newest: int) -> Sequence[int]:
    """The numbers of the secrets to sign with: the newest and the one before it.

    With the older secret, the endpoint can verify pushes until the new one is deployed there.
    """
    return (newest, newest - 1) if newest > 1 else (newest,)


def build_request(row: Invocation, secrets: Sequence[str]) -> tuple[list[tuple[str, str]], bytes]:
    """Build the headers and the body that push a running attempt. They depend only on the row and the secrets."""
    body = msgspec.json.encode(
        PushPayload(
            id=row.id,
            zone_id=row.zone_id,
            service_id=row.service_id,
            method=row.method,
            params=msgspec.Raw(row.params_json),
            metadata=msgspec.Raw(row.metadata_json),
            attempt=row.attempts,
            deadline_at=iso_or_none(row.deadline_at),
            source_session_id=row.source_session_id,
            target_session_id=row.target_session_id,
        )
    )
    headers = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, */*;q=0.5"),
        ("Idempotency-Key", row.id),
        *webhook_signing.signature_headers(row.id, row.started_at or row.updated_at, body, secrets),
    ]
    if row.trace is not None:
        headers.append(("traceparent", row.trace))
    return headers, body


def response_outcome(status: int, content_type: str | None, body: bytes) -> PushOutcome:
    if 200 <= status < 300:
        return PushOutcome(SUCCEEDED, "succeeded", result=body_to_json(content_type, body))
    return _status_outcome(status, _excerpt(content_type, body))


def oversized_outcome(status: int | None) -> PushOutcome:
    """The outcome of a response above the size limit. `status` is None if it could not be read."""
    if status is not None and 400 <= status < 500:
        return _status_outcome(status, None)
    return failed_outcome(TOO_LARGE, "the response is too large")


def failed_outcome(code: str, detail: str) -> PushOutcome:
    return PushOutcome(code, "failed", error=_json_text({"code": code, "detail": detail}))


def body_to_json(content_type: str | None, body: bytes) -> str:
    """Convert a body to JSON. A JSON value is kept, other content becomes a string, and an empty body becomes null."""
    if not body:
        return "null"
    return (_normalize_json(body) if _may_be_json(content_type) else None) or _json_text(body.decode(errors="replace"))


def _status_outcome(status: int, excerpt: str | None) -> PushOutcome:
    is_rejected = 400 <= status < 500
    code = REJECTED if is_rejected else REDIRECTED if 300 <= status < 400 else FAILED
    error: dict[str, object] = {"code": code, "status": status}
    if excerpt is not None:
        error["answer"] = msgspec.Raw(excerpt)
    return PushOutcome(code, "failed", error=_json_text(error), retryable=not is_rejected)


def _excerpt(content_type: str | None, body: bytes) -> str:
    """The part of a response that an error quotes: all of it if it is short, else its first bytes."""
    if len(body) <= EXCERPT_MAX_BYTES:
        return body_to_json(content_type, body)
    return _json_text(body[:EXCERPT_MAX_BYTES].decode(errors="ignore"))


def _may_be_json(content_type: str | None) -> bool:
    """Whether the content type is JSON or missing."""
    if content_type is None:
        return True
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def _normalize_json(body: bytes) -> str | None:
    """Decode and encode again, so that clients only get JSON that this server wrote. None if invalid or too deep."""
    try:
        value: object = msgspec.json.decode(body)
        return _json_text(value) if _is_within_depth(value) else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _is_within_depth(value: object) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return True
    return False


def _children(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return [*value.values()]
    return value if isinstance(value, list) else ()


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()
