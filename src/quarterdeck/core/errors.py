"""All refusals and faults, in one module.

A `Problem` is both a value and an exception. Operations return problems in their list of outcomes, so that a refused
command does not fail the others of its batch; HTTP and CLI raise them. The caller can fix a *refusal*; a *fault* is on
the server's side. Components define their codes (`agent_not_found`). This module defines the types, each with an
HTTP status and a CLI exit code.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_NOT_FOUND = 4
EXIT_TIMEOUT = 5


class Problem(Exception):
    """The base class. `code` is stable, for programs; `detail` is for people."""

    status: ClassVar[int]
    exit_code: ClassVar[int] = EXIT_FAILED
    title: ClassVar[str]

    def __init__(self, code: str, detail: str, **members: object) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.members = members

    @property
    def retry_after(self) -> int | None:
        """Seconds after which a retry may succeed, or None if waiting does not help."""
        return self._int_member("retry_after")

    @property
    def bound(self) -> str | None:
        """The name of the limit that refused the command, if one did."""
        return self._text_member("bound")

    @property
    def limit(self) -> int | None:
        return self._int_member("limit")

    @property
    def used(self) -> int | None:
        return self._int_member("used")

    @property
    def frees(self) -> str | None:
        """What would free capacity under the limit."""
        return self._text_member("frees")

    def _text_member(self, name: str) -> str | None:
        value = self.members.get(name)
        return value if isinstance(value, str) else None

    def _int_member(self, name: str) -> int | None:
        value = self.members.get(name)
        return value if isinstance(value, int) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {self.detail!r})"


class Refusal(Problem):
    """The request cannot be carried out. Repeating it unchanged gives the same result until something else changes."""


class Invalid(Refusal):
    """The request itself is wrong. `field` is the path of the wrong field, where there is one."""

    status = 400
    title = "Bad request"


class Unauthenticated(Refusal):
    status = 401
    title = "Not authenticated"


class Forbidden(Refusal):
    status = 403
    title = "Not allowed"


class NotFound(Refusal):
    status = 404
    exit_code = EXIT_NOT_FOUND
    title = "Not found"


class MethodNotAllowed(Refusal):
    status = 405
    title = "Method not allowed"


class Conflict(Refusal):
    status = 409
    title = "Conflict"


class StateConflict(Conflict):
    """A guarded statement updated no row: the state does not permit this verb."""


class TooLarge(Refusal):
    status = 413
    title = "Too large"


class KeyConflict(Refusal):
    """The idempotency key was already used for a different request."""

    status = 422
    title = "Idempotency key conflict"


class Frozen(Refusal):
    """An operator has frozen the zone: it admits nothing new."""

    status = 423
    exit_code = EXIT_REFUSED
    title = "Frozen"


class LimitReached(Refusal):
    """A limit is reached. The members name the limit, its value, how much is used and what would free capacity."""

    status = 429
    exit_code = EXIT_REFUSED
    title = "Limit reached"


class Fault(Problem):
    """A failure of the server. The same request may succeed later, unchanged."""


class Internal(Fault):
    status = 500
    title = "Internal error"


class Unavailable(Fault):
    """The database is not reachable, a queue is full, or the server is draining."""

    status = 503
    exit_code = EXIT_TIMEOUT
    title = "Unavailable"


class OutcomeUnknown(Unavailable):
    """The connection was lost during COMMIT, and the outcome could not be read in time. Retry with the same idempotency
    key."""


def concrete_types(root: type[Problem] = Problem) -> list[type[Problem]]:
    """All types that a client can receive: those with a status."""
    found = [root] if hasattr(root, "status") else []
    for subclass in root.__subclasses__():
        found += concrete_types(subclass)
    return found
