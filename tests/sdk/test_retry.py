"""Which calls are retried: only those that cannot take effect twice."""

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
from quarterdeck.sdk.transport import RetryWindow, retry_delay

NOT_EXECUTED = [
    Unreachable("server_unreachable", "Connection refused."),
    TimedOut("connect_timeout", "Not accepted."),
    Unavailable("queue_full", "Full.", retry_after=1),
    Unavailable("draining", "Draining."),
    LimitReached("agent_limit_exceeded", "Full.", retry_after=5),
]
MAYBE_EXECUTED = [
    Lost("answer_lost", "Cut."),
    TimedOut("answer_timeout", "Slow."),
    OutcomeUnknown("outcome_unknown", "Unknown.", retry_after=1),
    problem_from_response(Response(502, {}, b"")),
    problem_from_response(Response(504, {}, b"")),
]
NEVER_RETRIED = [
    Lost("garbled_answer", "Not HTTP."),
    LimitReached("agent_depth_limit_exceeded", "Too deep."),
    UntrustedServer("server_of_a_stranger", "Another user."),
    Internal("internal_error", "Internal error."),
    Conflict("stale_attempt", "The attempt has ended."),
]


def delay_for(problem: Problem, *, is_retry_safe: bool) -> float | None:
    return retry_delay(problem, 1, is_retry_safe=is_retry_safe, jitter=0.5)


@pytest.mark.parametrize("problem", NOT_EXECUTED, ids=lambda problem: problem.code)
def test_call_that_was_not_executed_is_always_retried(problem: Problem) -> None:
    assert delay_for(problem, is_retry_safe=False) is not None
    assert delay_for(problem, is_retry_safe=True) is not None


@pytest.mark.parametrize("problem", MAYBE_EXECUTED, ids=lambda problem: problem.code)
def test_call_with_unknown_outcome_is_retried_only_if_safe(problem: Problem) -> None:
    assert delay_for(problem, is_retry_safe=False) is None
    assert delay_for(problem, is_retry_safe=True) is not None


@pytest.mark.parametrize("problem", NEVER_RETRIED, ids=lambda problem: problem.code)
def test_permanent_problem_is_not_retried(problem: Problem) -> None:
    assert delay_for(problem, is_retry_safe=True) is None


def test_only_limit_refusals_with_retry_after_are_retried() -> None:
    for problem_type in concrete_types(Refusal):
        assert delay_for(problem_type("code", "No."), is_retry_safe=True) is None
        delay = delay_for(problem_type("code", "No.", retry_after=1), is_retry_safe=True)
        assert (delay is not None) is (problem_type is LimitReached)


def test_first_unknown_outcome_is_retried_beyond_the_window() -> None:
    retry_window = RetryWindow(15.0)
    assert not retry_window.allows_retry(NOT_EXECUTED[0], 31.0)
    assert retry_window.allows_retry(MAYBE_EXECUTED[1], 31.0)
    assert not retry_window.allows_retry(MAYBE_EXECUTED[1], 62.0)
    assert retry_window.allows_retry(MAYBE_EXECUTED[1], 14.0)
    assert not RetryWindow(0.0).allows_retry(MAYBE_EXECUTED[1], 31.0)


def test_delays_grow_to_a_limit_with_jitter() -> None:
    def delay(attempt: int, jitter: float) -> float:
        wait = retry_delay(NOT_EXECUTED[0], attempt, is_retry_safe=False, jitter=jitter)
        assert wait is not None
        return wait

    assert delay(1, 0.0) < delay(2, 0.0) < delay(5, 0.0) <= delay(50, 0.0) == 5.0
    assert delay(3, 0.9) < delay(3, 0.1)


def test_retry_after_is_the_minimum_delay_with_jitter() -> None:
    delays = {retry_delay(NOT_EXECUTED[2], 3, is_retry_safe=False, jitter=tenths / 10) for tenths in range(10)}
    assert all(delay is not None and 1 <= delay < 2 for delay in delays)
    assert len(delays) > 5
