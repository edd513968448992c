"""The types of refusals and faults, each with an HTTP status and a CLI exit code.

A `Problem` is both a value and an exception. Operations return problems in their list of outcomes, so that a refused
command does not fail the others of its batch; HTTP and CLI raise them. A *refusal* is due to the request or to the
stored state. A *fault* is due to the server. Components define the error codes (`agent_not_found`).
"""

from __future__ import annotations

from typing import ClassVar

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_NOT_FOUND = 4
EXIT_TIMEOUT = 5


class Problem(Exception):
    """A refusal or a fault. `code` is stable, for programs; `detail` is for people."""

    status: ClassVar[int]
    exit_code: ClassVar[int]
    title: ClassVar[str]

    def __init_subclass__(cls, status: int | None = None, title: str = "", exit_code: int = EXIT_FAILED) -> None:
        # A type without a status of its own has those of its parent, or only groups other types.
        if status is not None:
            cls.status, cls.title, cls.exit_code = status, title, exit_code

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
    """The server does not carry out the request, and refuses it again until the request or the state changes."""


class Invalid(Refusal, status=400, title="Bad request"):
    """The request itself is wrong. `field` is the path of the wrong field, where there is one."""


class Unauthenticated(Refusal, status=401, title="Not authenticated"): ...


class Forbidden(Refusal, status=403, title="Not allowed"): ...


class NotFound(Refusal, status=404, title="Not found", exit_code=EXIT_NOT_FOUND): ...


class MethodNotAllowed(Refusal, status=405, title="Method not allowed"): ...


class Conflict(Refusal, status=409, title="Conflict"): ...


class StateConflict(Conflict):
    """The state of the object does not permit this verb."""


class TooLarge(Refusal, status=413, title="Too large"): ...


class KeyConflict(Refusal, status=422, title="Idempotency key conflict"):
    """The idempotency key was already used for a different request."""


class Frozen(Refusal, status=423, title="Frozen", exit_code=EXIT_REFUSED):
    """An operator has frozen the zone: it admits nothing new."""


class LimitReached(Refusal, status=429, title="Limit reached", exit_code=EXIT_REFUSED):
    """A limit is reached. The members name the limit, its value, how much is used and what would free capacity."""


class Fault(Problem):
    """A failure of the server. The same request may succeed later, unchanged."""


class Internal(Fault, status=500, title="Internal error"): ...


class Unavailable(Fault, status=503, title="Unavailable", exit_code=EXIT_TIMEOUT):
    """The server cannot process the request now: the database or the issuer of the token is not reachable, a queue is
    full, or the server is shutting down."""


class OutcomeUnknown(Unavailable):
    """The request may have taken effect: the connection to the database was lost during COMMIT, or the server stopped
    before it could respond. Retry with the same idempotency key."""


def concrete_types(root: type[Problem] = Problem) -> list[type[Problem]]:
    """All types that a client can receive: those with a status."""
    types = [root] if hasattr(root, "status") else []
    for subclass in root.__subclasses__():
        types += concrete_types(subclass)
    return types
