"""Which calls are made again: only those that cannot be done twice by it."""

from __future__ import annotations

import pytest

from quarterdeck.client.discovery import UntrustedServer
from quarterdeck.client.http_types import Response
from quarterdeck.client.problems import problem_from_response
from quarterdeck.core.errors import concrete_types
from quarterdeck.sdk.errors import (
    Conflict,
    Internal,
    LimitReached,
    Lost,
    OutcomeUnknown,
    Problem,
    Refusal,
    TimedOut,
    Unavailable,
    Unreachable,
)
from quarterdeck.sdk.transport import RetryBudget, retry_delay

NOTHING_DONE = [
    Unreachable("server_unreachable", "Nobody listens."),
    TimedOut("connect_timeout", "Nobody accepts."),
    Unavailable("queue_full", "Full.", retry_after=1),
    Unavailable("draining", "Goes."),
    LimitReached("agent_limit_exceeded", "Full.", retry_after=5),
]
MAYBE_DONE = [
    Lost("answer_lost", "Cut."),
    TimedOut("answer_timeout", "Slow."),
    OutcomeUnknown("outcome_unknown", "Who knows.", retry_after=1),
    problem_from_response(Response(502, {}, b"")),
    problem_from_response(Response(504, {}, b"")),
]
NEVER = [
    Lost("garbled_answer", "Not HTTP."),
    LimitReached("agent_depth_limit_exceeded", "Too deep."),
    UntrustedServer("server_of_a_stranger", "Not ours."),
    Internal("internal_error", "A defect."),
    Conflict("stale_attempt", "Over."),
]


def waited(problem: Problem, *, repeats: bool) -> float | None:
    return retry_delay(problem, 1, is_retry_safe=repeats, jitter=0.5)


@pytest.mark.parametrize("problem", NOTHING_DONE, ids=lambda problem: problem.code)
def test_what_surely_was_not_done_is_made_again_whatever_it_is(problem: Problem) -> None:
    assert waited(problem, repeats=False) is not None
    assert waited(problem, repeats=True) is not None


@pytest.mark.parametrize("problem", MAYBE_DONE, ids=lambda problem: problem.code)
def test_what_may_have_been_done_is_made_again_only_if_that_does_no_harm(problem: Problem) -> None:
    assert waited(problem, repeats=False) is None
    assert waited(problem, repeats=True) is not None


@pytest.mark.parametrize("problem", NEVER, ids=lambda problem: problem.code)
def test_what_would_be_no_different_is_not_made_again(problem: Problem) -> None:
    assert waited(problem, repeats=True) is None


def test_no_refusal_is_made_again_but_a_limit_of_which_the_server_says_that_waiting_helps() -> None:
    for kind in concrete_types(Refusal):
        assert waited(kind("code", "No."), repeats=True) is None
        again = waited(kind("code", "No.", retry_after=1), repeats=True)
        assert (again is not None) is (kind is LimitReached)


def test_the_first_unknown_outcome_is_asked_for_whatever_the_patience_and_no_other() -> None:
    patience = RetryBudget(15.0)
    assert not patience.allows_retry(NOTHING_DONE[0], 31.0)
    assert patience.allows_retry(MAYBE_DONE[1], 31.0)
    assert not patience.allows_retry(MAYBE_DONE[1], 62.0)
    assert patience.allows_retry(MAYBE_DONE[1], 14.0)
    assert not RetryBudget(0.0).allows_retry(MAYBE_DONE[1], 31.0)


def test_pauses_grow_to_a_bound_and_chance_spreads_them() -> None:
    def grown(attempt: int, chance: float) -> float:
        wait = retry_delay(NOTHING_DONE[0], attempt, is_retry_safe=False, jitter=chance)
        assert wait is not None
        return wait

    assert grown(1, 0.0) < grown(2, 0.0) < grown(5, 0.0) <= grown(50, 0.0) == 5.0
    assert grown(3, 0.9) < grown(3, 0.1)


def test_what_the_server_asks_for_is_the_least_and_not_the_same_for_everybody() -> None:
    waits = {retry_delay(NOTHING_DONE[2], 3, is_retry_safe=False, jitter=chance / 10) for chance in range(10)}
    assert all(wait is not None and 1 <= wait < 2 for wait in waits)
    assert len(waits) > 5
