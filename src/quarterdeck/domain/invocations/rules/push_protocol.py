"""What is said to an endpoint that is pushed to, and what its answer means.

| what came of it                                     | is                                             |
|-----------------------------------------------------|------------------------------------------------|
| 2xx                                                 | succeeded, with the body as its result         |
| 4xx                                                 | failed, and not tried again                    |
| any other status, an answer that cannot be read     | a failed attempt, followed by the next         |
| an address that the server does not call, no answer | likewise; the error says which                 |
| the deadline passed                                 | what every deadline is (`lives.overdue`)       |

A result has to be whole. An answer beyond the bound is no result, so a 2xx that is too large is a failed attempt; a 4xx
is what its status says, however much it says beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from quarterdeck.core import webhook_signing
from quarterdeck.core.clock import iso_or_none
from quarterdeck.domain.invocations.model import Invocation, PushedView

DEPTH_MAX = 64
"""As deep as what workers report may be."""
QUOTED_MAX = 4_096
"""Bytes of an answer that an error quotes."""


class Verdict(msgspec.Struct, frozen=True):
    """What an attempt came to, as it is reported."""

    code: str
    """One of CODES: what is counted."""
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
    """The secrets to sign with. The one before the newest, too: whoever is pushed to must be able to go on while the
    new one is on its way to everybody who checks it."""
    return (newest, newest - 1) if newest > 1 else (newest,)


def pushed(row: Invocation, secrets: Sequence[str]) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of an attempt that has begun. They follow from the row: sent again they are the same."""
    body = msgspec.json.encode(
        PushedView(
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
        *webhook_signing.signed(row.id, row.started_at or row.updated_at, body, secrets),
    ]
    if row.trace is not None:
        headers.append(("traceparent", row.trace))
    return headers, body


def answered(status: int, content_type: str | None, body: bytes) -> Verdict:
    if 200 <= status < 300:
        return Verdict(SUCCEEDED, "succeeded", result=value_of(content_type, body))
    return _by_status(status, _quoted(content_type, body))


def overflowed(status: int | None) -> Verdict:
    """An answer that was too large to be kept. What it began with is known, if it began."""
    if status is not None and 400 <= status < 500:
        return _by_status(status, None)
    return failed(TOO_LARGE, "the answer is too large to be kept")


def failed(code: str, detail: str) -> Verdict:
    return Verdict(code, "failed", error=_text({"code": code, "detail": detail}))


def value_of(content_type: str | None, body: bytes) -> str:
    """A body as JSON: as it is if it is JSON, else as a string of it; nothing is null."""
    if not body:
        return "null"
    return (_json(body) if _may_be_json(content_type) else None) or _text(body.decode(errors="replace"))


def _by_status(status: int, quoted: str | None) -> Verdict:
    rejected = 400 <= status < 500
    code = REJECTED if rejected else REDIRECTED if 300 <= status < 400 else FAILED
    error: dict[str, object] = {"code": code, "status": status}
    if quoted is not None:
        error["answer"] = msgspec.Raw(quoted)
    return Verdict(code, "failed", error=_text(error), retryable=not rejected)


def _quoted(content_type: str | None, body: bytes) -> str:
    """What an error tells of an answer: all of it if it is short, else its beginning."""
    if len(body) <= QUOTED_MAX:
        return value_of(content_type, body)
    return _text(body[:QUOTED_MAX].decode(errors="ignore"))


def _may_be_json(content_type: str | None) -> bool:
    """Who says nothing may mean it; who says text does not."""
    if content_type is None:
        return True
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _json(body: bytes) -> str | None:
    """Read and written anew: what is shown to others is JSON that this server wrote."""
    try:
        value: object = msgspec.json.decode(body)
        return _text(value) if _is_shallow(value) else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _is_shallow(value: object) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return True
    return False


def _inside(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return [*value.values()]
    return value if isinstance(value, list) else ()


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
