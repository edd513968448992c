"""Every way of saying no, on one page.

A `Problem` is both a value and an exception: operations return refusals in their list of outcomes (a
refused command costs its neighbours nothing), and the faces raise them. A *refusal* is the caller's to
mend; a *fault* is ours. Rooms own their codes (`agent_not_found`); this page owns the kinds, and the one
table that says how each kind looks from outside: an HTTP status and a CLI exit code.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_NOT_FOUND = 4
EXIT_TIMEOUT = 5


class Problem(Exception):
    """The root of the tree. `code` is the stable word programs match on; `detail` is the sentence people
    read."""

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
        """Seconds after which asking again may help, or None where waiting does not help."""
        return self._int_member("retry_after")

    @property
    def bound(self) -> str | None:
        """The name of the bound that holds, where one does."""
        return self._text_member("bound")

    @property
    def limit(self) -> int | None:
        return self._int_member("limit")

    @property
    def used(self) -> int | None:
        return self._int_member("used")

    @property
    def frees(self) -> str | None:
        """What would free it."""
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
    """What was asked cannot be; asking again unchanged gives the same answer until something else changes."""


class Invalid(Refusal):
    """The request itself is wrong. `field` names the path of what is wrong where one can be named."""

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
    """A guarded statement moved nothing: the subject was not in a state this verb may leave."""


class TooLarge(Refusal):
    status = 413
    title = "Too large"


class KeyConflict(Refusal):
    """An idempotency key that already stands for something else."""

    status = 422
    title = "Idempotency key conflict"


class Frozen(Refusal):
    """An operator has stopped admission here."""

    status = 423
    exit_code = EXIT_REFUSED
    title = "Frozen"


class LimitReached(Refusal):
    """A bound holds. Explains itself: which bound, its limit, how much is used, what would free it."""

    status = 429
    exit_code = EXIT_REFUSED
    title = "Limit reached"


class Fault(Problem):
    """Ours, not the caller's: the same request may succeed later, unchanged."""


class Internal(Fault):
    status = 500
    title = "Internal error"


class Unavailable(Fault):
    """The database is away, a queue is full, or the server is draining."""

    status = 503
    exit_code = EXIT_TIMEOUT
    title = "Unavailable"


class OutcomeUnknown(Unavailable):
    """The connection died during COMMIT and nobody could be asked in time. Retry with the same key."""


def concrete_types(root: type[Problem] = Problem) -> list[type[Problem]]:
    """Every kind that can be met outside: those that have a status."""
    found = [root] if hasattr(root, "status") else []
    for subclass in root.__subclasses__():
        found += concrete_types(subclass)
    return found
