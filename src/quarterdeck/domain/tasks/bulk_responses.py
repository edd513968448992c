"""Requests for many: what is wrong with one of them is its own outcome, which names it, and its neighbours go on.

Only what is wrong with the request itself (it cannot be read, its caller may not speak, there is no such workspace) is
the answer to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from quarterdeck.core.errors import Problem, Unauthenticated
from quarterdeck.domain.tasks.model.views import TaskView
from quarterdeck.domain.tasks.request_commands import with_field
from quarterdeck.domain.zones.rules import ZONE_NOT_FOUND

RESPONSE_BYTES_MAX = 16 << 20
"""Bytes of what tasks say that were made before, and are shown again by one answer."""
C = TypeVar("C")


def try_build(build: Callable[[], C]) -> C | Problem:
    """What is asked by one of them; or what is wrong with that."""
    try:
        return build()
    except Problem as problem:
        return problem


def applies_to_all(outcome: object) -> bool:
    """All were asked by the same, in the same workspace: whoever may not speak for one may not speak for any."""
    return isinstance(outcome, Unauthenticated) or (isinstance(outcome, Problem) and outcome.code == ZONE_NOT_FOUND)


def problem_for_all(outcomes: Iterable[object]) -> Problem | None:
    return next((outcome for outcome in outcomes if isinstance(outcome, Problem) and applies_to_all(outcome)), None)


class BulkResponse:
    """What became of each task of a request, in its order."""

    def __init__(self) -> None:
        self.outcomes: list[TaskView | msgspec.Raw] = []
        self._bytes_left = RESPONSE_BYTES_MAX

    def add_problem(self, problem: Problem) -> None:
        body = problem_document(problem, f"$.tasks[{len(self.outcomes)}]")
        self.outcomes.append(msgspec.Raw(msgspec.json.encode(body)))

    def reserve_bytes(self, size: int) -> bool:
        """For one that was there already: what has been said of it since is not bounded by the request."""
        self._bytes_left -= size
        return self._bytes_left >= 0


def problem_document(problem: Problem, path: str) -> dict[str, object]:
    """A problem as one of many outcomes."""
    located = with_field(problem, path)
    return {"error": located.code, "detail": located.detail, "status": located.status, **located.members}
