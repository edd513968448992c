"""Whether a call is made again, and when. Time and chance are arguments."""

from __future__ import annotations

from dataclasses import dataclass

from quarterdeck.client.discovery import Stranger
from quarterdeck.client.http_sync import Lost, TimedOut, Unreachable
from quarterdeck.core.errors import Internal, LimitReached, OutcomeUnknown, Problem, Unavailable
from quarterdeck.core.retry import Policy, delay

POLICY = Policy(max_attempts=0, base_ms=50, cap_ms=5_000)
"""How the pauses grow. How often is a question of patience, not of a number."""
BAD_GATEWAY = 502


@dataclass(slots=True)
class Patience:
    """For how long one call is begun again."""

    seconds: float
    was_in_doubt: bool = False

    def bears(self, problem: Problem, waited: float) -> bool:
        """Whether it is begun again so many seconds after it was begun first. The first unknown outcome is asked for
        however long it took: waiting for an answer may take longer than all patience."""
        is_first_doubt = is_unknown(problem) and not self.was_in_doubt
        self.was_in_doubt = self.was_in_doubt or is_first_doubt
        return waited <= self.seconds or (is_first_doubt and self.seconds > 0)


def pause(problem: Problem, attempt: int, *, repeats: bool, chance: float) -> float | None:
    """Seconds to wait after the attempt numbered `attempt` (from 1) ended so, or None: it is not to be made again.

    `repeats`: it may be made twice without being done twice.
    """
    if not (passes(problem) or (repeats and is_unknown(problem))):
        return None
    grown = delay(POLICY, attempt=attempt, chance=chance) / 1000
    # What the server asks for is the least; chance keeps those it told the same from coming in the same instant.
    return grown if problem.retry_after is None else problem.retry_after + grown * chance


def passes(problem: Problem) -> bool:
    """Whether nothing was done, and may be later."""
    if isinstance(problem, OutcomeUnknown | Stranger):
        return False
    if isinstance(problem, LimitReached):
        return problem.retry_after is not None
    return isinstance(problem, Unreachable | Unavailable) or problem.code == "connect_timeout"


def is_unknown(problem: Problem) -> bool:
    """Whether it may have been done. What cannot be read is none of these: it would be no better a second time."""
    if isinstance(problem, Internal):
        return problem.members.get("status") == BAD_GATEWAY
    return isinstance(problem, OutcomeUnknown | Lost | TimedOut) and problem.code != "garbled_answer"
