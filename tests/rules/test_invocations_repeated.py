"""The same word twice: whoever did not hear the answer says it again, and is told the same; nobody else is."""

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
    board,
    call,
    claim,
    code,
    complete,
    leases,
    moved,
    row,
    told,
)
from tests.support.builders import NOW, ZONE, caller, session_row

CANCEL = Cancel(zone_id=ZONE, caller=INVOKER, id="i-k", reason="why")


def start(claim_id: str | None = None, token: str = "a", by: Caller = WORKER) -> Start:
    return Start(zone_id=ZONE, caller=by, id="i-k", attempt_token=token, claim_id=claim_id)


# -- claiming


def test_what_could_not_be_delivered_is_not_taken_from_whoever_was_given_it_again() -> None:
    on = board(row())
    [lost] = leases(on.decide(claim(claim_id="c")))
    [again] = leases(on.decide(claim(token="u", claim_id="c")))
    given_back = Release(zone_id=ZONE, id="i-k", attempt_token="t", lease_expires_at=lost.lease_expires_at)
    assert moved(on.decide(given_back)) == again
    assert again.lease_expires_at == NOW + LEASE + 1, "in the same millisecond, too, it is another lease"
    assert moved(on.decide(complete())).status is State.SUCCEEDED


def test_what_could_not_be_delivered_goes_back_if_nobody_was_given_it_again() -> None:
    on = board(row())
    [lost] = leases(on.decide(claim(claim_id="c")))
    given_back = Release(zone_id=ZONE, id="i-k", attempt_token="t", lease_expires_at=lost.lease_expires_at)
    assert moved(on.decide(given_back)).status is State.PENDING
    [again] = leases(on.decide(claim(token="u", claim_id="c")))
    assert (again.attempts, again.attempt_token) == (1, "u")


def test_a_holder_gives_back_what_it_has_whatever_its_lease_has_become() -> None:
    on = board(row())
    leases(on.decide(claim(claim_id="c")))
    leases(on.decide(claim(token="u", claim_id="c")))
    on.decide(Heartbeat(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t"))
    assert moved(on.decide(Release(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t"))).attempts == 0


def test_a_claim_is_given_again_what_runs_and_nothing_that_was_given_back_or_begun_by_a_start() -> None:
    on = board(row())
    leases(on.decide(claim(claim_id="c")))
    moved(on.decide(Release(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t")))
    moved(on.decide(start("c")))
    assert leases(on.decide(claim(token="u", claim_id="c"))) == ()


# -- starting


def test_one_attempt_is_not_given_to_two_who_start_it_with_one_credential() -> None:
    on = board(row())
    moved(on.decide(start("one")))
    for other in (start("two", "b"), start(None, "b")):
        assert code(on.decide(other)) == "invocation_not_startable"
    nameless = board(row())
    moved(nameless.decide(start()))
    assert code(nameless.decide(start(token="b"))) == "invocation_not_startable"


def test_a_start_repeated_with_its_id_gives_the_same_attempt() -> None:
    on = board(row())
    first = moved(on.decide(start("one")))
    assert moved(on.decide(start("one", "b"))) == first
    somebody_else = msgspec.structs.replace(WORKER, subject="somebody else")
    assert code(on.decide(start("one", "c", somebody_else))) == "invocation_not_startable"


# -- reporting


@pytest.mark.parametrize("said", ["succeeded", "failed", "canceled"])
def test_whatever_is_reported_after_a_request_to_cancel_it_is_canceled_and_the_report_is_kept_and_answered_twice(
    said: Literal["succeeded", "failed", "canceled"],
) -> None:
    on = board(row(State.RUNNING))
    on.decide(CANCEL)
    done = moved(on.decide(complete(said)))
    assert (done.status, done.result_json, done.error_json) == (State.CANCELED, '"r"', '"e"')
    assert moved(on.decide(complete(said))) == done
    assert told(on) == ["cancel_requested", "canceled"]


def test_a_failure_that_is_tried_again_is_answered_twice() -> None:
    on = board(row(State.RUNNING))
    waits = moved(on.decide(complete("failed")))
    assert waits.status is State.PENDING
    assert moved(on.decide(complete("failed"))) == waits
    assert code(on.decide(complete("succeeded"))) == "stale_attempt"
    assert code(on.decide(complete("failed", retryable=False))) == "stale_attempt"
    assert told(on) == ["retried"]


def test_what_was_canceled_before_its_holder_said_anything_is_completed_by_nobody() -> None:
    on = board(row(State.CANCELED))
    assert code(on.decide(complete("succeeded"))) == "invocation_not_completable"
    assert code(on.decide(complete("failed"))) == "invocation_not_completable"


# -- who


def test_no_two_credentials_are_the_same_holder() -> None:
    def named(client: str, subject: str, session_id: str | None = None) -> str:
        return _holder_name(Caller(subject, client, ZONE, frozenset(), session_id=session_id))

    names = [named("a", "b c"), named("a", "b", "c"), named("a b", "c"), named("a", "b%20c"), named("a", "b")]
    assert len({*names}) == len(names)


def test_a_suspended_session_invokes_nothing_also_not_in_the_name_of_another() -> None:
    asleep = session_row(id="x", application_id="invoker", status=SessionState.SUSPENDED)
    sibling = session_row(id="y", application_id="invoker")
    sessions = {(ZONE, "x"): asleep, (ZONE, "y"): sibling}
    speaker = caller("invoker", session_id="x")
    on = board(sessions=sessions)
    for named in (None, "y"):
        assert code(on.decide(call(source_session_id=named, caller=speaker))) == "agent_suspended"
    known = board(row(), sessions=sessions)
    assert isinstance(known.decide(call(caller=speaker)), EnqueuedInvocation), "what was acknowledged is so again"
