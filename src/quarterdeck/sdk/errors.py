"""Every way a call can fail. The kinds are those of `core.errors`, the same near the server and far from it.

Problem                     code, detail, members; bound, limit, used, frees, retry_after where they are told
├─ Refusal                  asking again unchanged gives the same answer until something else changes
│   ├─ Invalid              400
│   ├─ Unauthenticated      401
│   ├─ Forbidden            403
│   ├─ NotFound             404
│   ├─ Conflict             409
│   ├─ TooLarge             413
│   ├─ KeyConflict          422   the key stands for something else
│   ├─ Frozen               423
│   └─ LimitReached         429   a bound holds
└─ Fault                    the same may succeed later; it was tried again already as far as that is safe
    ├─ Internal             500
    ├─ Unavailable          503
    │   └─ OutcomeUnknown         it may have been done: only the same key is safe
    ├─ Unreachable                nothing was sent
    ├─ Lost                       it was sent, and no answer came
    └─ TimedOut                   no answer in time
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
    """An invocation is over and has no result: it failed, timed out, was canceled or is dead."""

    def __init__(self, invocation: Invocation) -> None:
        super().__init__(f"{invocation.method} of {invocation.service_id} {invocation.status}: {invocation.error}")
        self.invocation = invocation

    @property
    def status(self) -> str:
        return self.invocation.status

    @property
    def error(self) -> object:
        return self.invocation.error


class LogReset(Exception):
    """The log does not hold what comes after the position one was at: there are events one has not seen. Following may
    go on after `position`."""

    def __init__(self, position: int) -> None:
        super().__init__(f"The log does not reach back to where this reader was; it goes on after {position}.")
        self.position = position


# -- raised by a worker's methods ----------------------------------------------------------------------------------


class Fatal(Exception):
    """Raised by a method: it has failed, and another attempt would fail as well."""

    def __init__(self, message: str, **data: object) -> None:
        super().__init__(message)
        self.data = data


class Canceled(Exception):
    """Raised by a method: it has stopped because that was asked for."""


class Fail(Exception):
    """Raised by a task's function: the attempt has failed. Another follows, unless it is not `retryable`."""

    def __init__(self, message: str, *, retryable: bool = True, costs: Sequence[Cost] = ()) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.costs = costs


class Release(Exception):
    """Raised by a task's function: the task is given back as if it had never been begun. The attempt does not count."""
