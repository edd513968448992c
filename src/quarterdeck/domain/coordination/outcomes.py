"""What became of commands that were asked for together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.engine.leases import LeaseLost

R = TypeVar("R")


def sorted_out(outcomes: Iterable[R | BaseException]) -> list[R | Problem]:
    """Outcomes and refusals, each for its own command. That the term is over, that the database is away, or that
    something broke, is not about one of them, and ends the turn."""
    kept: list[R | Problem] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and (
            isinstance(outcome, LeaseLost | Unavailable) or not isinstance(outcome, Problem)
        ):
            raise outcome
        kept.append(outcome)
    return kept
