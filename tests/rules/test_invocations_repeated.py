"""Repeated commands of invocations: the same holder gets the same result, another holder is refused."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.domain.invocations.model import Cancel, EnqueuedInvocation, Heartbeat, Release, Start, State
from quarterdeck.domain.invocations.rules.decider import _holder_name
from quarterdeck.domain.sessions.model import State as SessionState
from tests.rules.test_invocations import (
    INVOKER,
    LEASE,
    WORKER,
    claim,
    code,
    complete,
    decider_with,
    enqueue,
    event_types,
    expect_claimed,
    expect_invocation,
    row,
)
from tests.support.builders import NOW, ZONE, caller, session_row

CANCEL = Cancel(zone_id=ZONE, caller=INVOKER, id="i-k", reason="test")


def start(claim_id: str | None = None, token: str = "a", starter: Caller = WORKER) -> Start:
    return Start(zone_id=ZONE, caller=starter, id="i-k", attempt_token=token, claim_id=claim_id)


# -- claim


def test_release_of_a_lost_claim_keeps_the_attempt_that_was_claimed_again() -> None:
    decider = decider_with(row())
    [lost] = expect_claimed(decider.decide(claim(claim_id="c")))
    [second] = expect_claimed(decider.decide(claim(token="u", claim_id="c")))
    release = Release(zone_id=ZONE, id="i-k", attempt_token="t", lease_expires_at=lost.lease_expires_at)
    assert expect_invocation(decider.decide(release)) == second
    assert second.lease_expires_at == NOW + LEASE + 1, "a new lease differs even in the same millisecond"
    assert expect_invocation(decider.decide(complete())).status is State.SUCCEEDED


def test_release_of_a_lost_claim_returns_an_attempt_not_claimed_again() -> None:
    decider = decider_with(row())
    [lost] = expect_claimed(decider.decide(claim(claim_id="c")))
    release = Release(zone_id=ZONE, id="i-k", attempt_token="t", lease_expires_at=lost.lease_expires_at)
    assert expect_invocation(decider.decide(release)).status is State.PENDING
    [second] = expect_claimed(decider.decide(claim(token="u", claim_id="c")))
    assert (second.attempts, second.attempt_token) == (1, "u")


def test_holder_can_release_its_attempt_with_any_lease() -> None:
    decider = decider_with(row())
    expect_claimed(decider.decide(claim(claim_id="c")))
    expect_claimed(decider.decide(claim(token="u", claim_id="c")))
    decider.decide(Heartbeat(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t"))
    assert (
        expect_invocation(decider.decide(Release(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t"))).attempts
        == 0
    )


def test_repeated_claim_excludes_released_and_started_attempts() -> None:
    decider = decider_with(row())
    expect_claimed(decider.decide(claim(claim_id="c")))
    expect_invocation(decider.decide(Release(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t")))
    expect_invocation(decider.decide(start("c")))
    assert expect_claimed(decider.decide(claim(token="u", claim_id="c"))) == ()


# -- start


def test_second_start_with_another_id_is_refused() -> None:
    decider = decider_with(row())
    expect_invocation(decider.decide(start("one")))
    for other in (start("two", "b"), start(None, "b")):
        assert code(decider.decide(other)) == "invocation_not_startable"
    without_id = decider_with(row())
    expect_invocation(without_id.decide(start()))
    assert code(without_id.decide(start(token="b"))) == "invocation_not_startable"


def test_start_repeated_with_its_id_returns_the_same_attempt() -> None:
    decider = decider_with(row())
    first = expect_invocation(decider.decide(start("one")))
    assert expect_invocation(decider.decide(start("one", "b"))) == first
    other_subject = msgspec.structs.replace(WORKER, subject="other-subject")
    assert code(decider.decide(start("one", "c", other_subject))) == "invocation_not_startable"


# -- completion


@pytest.mark.parametrize("status", ["succeeded", "failed", "canceled"])
def test_completion_after_a_cancel_request_is_canceled_and_can_be_repeated(
    status: Literal["succeeded", "failed", "canceled"],
) -> None:
    decider = decider_with(row(State.RUNNING))
    decider.decide(CANCEL)
    completed = expect_invocation(decider.decide(complete(status)))
    assert (completed.status, completed.result_json, completed.error_json) == (State.CANCELED, '"r"', '"e"')
    assert expect_invocation(decider.decide(complete(status))) == completed
    assert event_types(decider) == ["cancel_requested", "canceled"]


def test_retried_failure_can_be_reported_twice() -> None:
    decider = decider_with(row(State.RUNNING))
    pending = expect_invocation(decider.decide(complete("failed")))
    assert pending.status is State.PENDING
    assert expect_invocation(decider.decide(complete("failed"))) == pending
    assert code(decider.decide(complete("succeeded"))) == "stale_attempt"
    assert code(decider.decide(complete("failed", retryable=False))) == "stale_attempt"
    assert event_types(decider) == ["retried"]


def test_canceled_invocation_cannot_be_completed() -> None:
    decider = decider_with(row(State.CANCELED))
    assert code(decider.decide(complete("succeeded"))) == "invocation_not_completable"
    assert code(decider.decide(complete("failed"))) == "invocation_not_completable"


# -- callers


def test_different_credentials_have_different_holder_names() -> None:
    def holder(client_id: str, subject: str, session_id: str | None = None) -> str:
        return _holder_name(Caller(subject, client_id, ZONE, frozenset(), session_id=session_id))

    names = [holder("a", "b c"), holder("a", "b", "c"), holder("a b", "c"), holder("a", "b%20c"), holder("a", "b")]
    assert len({*names}) == len(names)


def test_suspended_session_cannot_invoke_even_for_another_session() -> None:
    suspended = session_row(id="x", application_id="invoker", status=SessionState.SUSPENDED)
    sibling = session_row(id="y", application_id="invoker")
    sessions = {(ZONE, "x"): suspended, (ZONE, "y"): sibling}
    suspended_caller = caller("invoker", session_id="x")
    decider = decider_with(sessions=sessions)
    for source_session_id in (None, "y"):
        assert (
            code(decider.decide(enqueue(source_session_id=source_session_id, caller=suspended_caller)))
            == "agent_suspended"
        )
    decider_with_row = decider_with(row(), sessions=sessions)
    assert isinstance(decider_with_row.decide(enqueue(caller=suspended_caller)), EnqueuedInvocation), (
        "an acknowledged invocation is acknowledged again"
    )
