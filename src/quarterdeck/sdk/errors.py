"""The exceptions that the SDK raises. The server uses the same classes, except the last three.

Problem                     code, detail, members; if the server sends them: bound, limit, used, frees, retry_after
├─ Refusal                  the same request is refused again until something else changes
│   ├─ Invalid              400
│   ├─ Unauthenticated      401
│   ├─ Forbidden            403
│   ├─ NotFound             404
│   ├─ Conflict             409
│   ├─ TooLarge             413
│   ├─ KeyConflict          422   the idempotency key was used for a different request
│   ├─ Frozen               423
│   └─ LimitReached         429   a limit was reached
└─ Fault                    the same request may succeed later; the SDK has already retried it if that is safe
    ├─ Internal             500
    ├─ Unavailable          503
    │   └─ OutcomeUnknown         the request may have been processed: retry only with the same key
    ├─ Unreachable                the request was not sent
    ├─ Lost                       the request was sent, but the response was lost or invalid
    └─ TimedOut                   no response within the time-out
"""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.client.http_types import Lost, TimedOut, Unreachable
from quarterdeck.core.errors import (
    Conflict,
    Fault,
    Forbidden,
    Frozen,
    Internal,
    Invalid,
    KeyConflict,
    LimitReached,
    NotFound,
    OutcomeUnknown,
    Problem,
    Refusal,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from quarterdeck.sdk.types import Invocation
from quarterdeck.sdk.work_types import Cost

__all__ = [
    "Canceled",
    "Conflict",
    "Fail",
    "Fatal",
    "Fault",
    "Forbidden",
    "Frozen",
    "Internal",
    "Invalid",
    "KeyConflict",
    "LimitReached",
    "LogReset",
    "Lost",
    "NotFound",
    "NotSucceeded",
    "OutcomeUnknown",
    "Problem",
    "Refusal",
    "Release",
    "TimedOut",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
]


class NotSucceeded(Exception):
    """An invocation ended without a result: it failed, timed out, was canceled or is dead."""

    def __init__(self, invocation: Invocation) -> None:
        super().__init__(
            f"{invocation.method} of {invocation.service_id} ended as {invocation.status}: {invocation.error}"
        )
        self.invocation = invocation

    @property
    def status(self) -> str:
        return self.invocation.status

    @property
    def error(self) -> object:
        return self.invocation.error


class LogReset(Exception):
    """Events after the reader's position have been deleted from the log, so the reader has missed some.

    To continue, call `follow` again with `after=position`.
    """

    def __init__(self, position: int) -> None:
        super().__init__(
            f"Events after the requested position have been deleted. The log continues after position {position}."
        )
        self.position = position


# -- raised by worker functions ------------------------------------------------------------------------------------


class Fatal(Exception):
    """Raise this in a method or a task's function if the attempt has failed and must not be retried."""

    def __init__(self, message: str, **data: object) -> None:
        super().__init__(message)
        self.data = data


class Canceled(Exception):
    """Raise this in a method or a task's function that stops because the attempt was canceled."""


class Fail(Exception):
    """Raise this in a task's function if the attempt has failed. The task is retried unless `retryable` is False."""

    def __init__(self, message: str, *, retryable: bool = True, costs: Sequence[Cost] = ()) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.costs = costs


class Release(Exception):
    """Raise this in a task's function to return the task to the queue. The attempt does not count."""
