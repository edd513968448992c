"""Responses to bulk requests: each item has its own outcome, and a refused item does not affect the other items.

Only if the request itself is at fault (it cannot be decoded, its caller is not authenticated, the workspace does not
exist) does the problem replace the entire response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from quarterdeck.core.errors import Problem, Unauthenticated
from quarterdeck.domain.tasks.model.views import TaskView
from quarterdeck.domain.tasks.routes.request_commands import with_field
from quarterdeck.domain.zones.rules import ZONE_NOT_FOUND

RESPONSE_BYTES_MAX = 16 << 20
"""Maximum total content size of the tasks in one response that existed before the request."""
C = TypeVar("C")


def try_build(build: Callable[[], C]) -> C | Problem:
    """Return the command of one item, or the problem with it."""
    try:
        return build()
    except Problem as problem:
        return problem


def applies_to_all(outcome: object) -> bool:
    """Whether the outcome is a problem with the caller or the workspace, which all items share."""
    return isinstance(outcome, Unauthenticated) or (isinstance(outcome, Problem) and outcome.code == ZONE_NOT_FOUND)


def problem_for_all(outcomes: Iterable[object]) -> Problem | None:
    return next((outcome for outcome in outcomes if isinstance(outcome, Problem) and applies_to_all(outcome)), None)


class BulkResponse:
    """Collects the outcomes of a bulk create, in request order."""

    def __init__(self) -> None:
        self.outcomes: list[TaskView | msgspec.Raw] = []
        self._bytes_left = RESPONSE_BYTES_MAX

    def add_problem(self, problem: Problem) -> None:
        body = problem_document(problem, f"$.tasks[{len(self.outcomes)}]")
        self.outcomes.append(msgspec.Raw(msgspec.json.encode(body)))

    def reserve_bytes(self, size: int) -> bool:
        """Reserve space in the response for an existing task. Returns False if too little is left.

        The task may have grown since it was created, so it can be larger than the request.
        """
        self._bytes_left -= size
        return self._bytes_left >= 0


def problem_document(problem: Problem, path: str) -> dict[str, object]:
    """The JSON of a problem with one item. `path` is the location of the item in the request."""
    located = with_field(problem, path)
    return {"error": located.code, "detail": located.detail, "status": located.status, **located.members}
