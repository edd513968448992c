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
from quarterdeck.domain.tasks.request_commands import placed
from quarterdeck.domain.zones.rules import ZONE_NOT_FOUND

ANSWER_MAX = 16 << 20
"""Bytes of what tasks say that were made before, and are shown again by one answer."""
C = TypeVar("C")


def attempted(make: Callable[[], C]) -> C | Problem:
    """What is asked by one of them; or what is wrong with that."""
    try:
        return make()
    except Problem as problem:
        return problem


def is_for_all(outcome: object) -> bool:
    """All were asked by the same, in the same workspace: whoever may not speak for one may not speak for any."""
    return isinstance(outcome, Unauthenticated) or (isinstance(outcome, Problem) and outcome.code == ZONE_NOT_FOUND)


def answer_to_all(outcomes: Iterable[object]) -> Problem | None:
    return next((each for each in outcomes if isinstance(each, Problem) and is_for_all(each)), None)


class Answer:
    """What became of each task of a request, in its order."""

    def __init__(self) -> None:
        self.outcomes: list[TaskView | msgspec.Raw] = []
        self._room = ANSWER_MAX

    def refuse(self, problem: Problem) -> None:
        told = document(problem, f"$.tasks[{len(self.outcomes)}]")
        self.outcomes.append(msgspec.Raw(msgspec.json.encode(told)))

    def has_room(self, size: int) -> bool:
        """For one that was there already: what has been said of it since is not bounded by the request."""
        self._room -= size
        return self._room >= 0


def document(problem: Problem, where: str) -> dict[str, object]:
    """A problem as one of many outcomes."""
    own = placed(problem, where)
    return {"error": own.code, "detail": own.detail, "status": own.status, **own.members}
