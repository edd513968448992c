"""The board of invocations: every command in every state, and what must hold whatever is asked in whatever order."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.domain.invocations.model import (
    AttemptOrigin,
    Cancel,
    CheckOverdue,
    Claim,
    ClaimedInvocations,
    Complete,
    Enqueue,
    EnqueuedInvocation,
    Heartbeat,
    Invocation,
    InvocationCommand,
    InvocationContext,
    Release,
    RetryPolicy,
    Start,
    State,
)
from quarterdeck.domain.invocations.rules import INVOCATION_STATES, BatchDecider, InvocationBatchInput, states
from quarterdeck.domain.invocations.rules.states import Attempt
from quarterdeck.domain.sessions.model import State as SessionState
from tests.support.builders import NOW, ZONE, caller, session_row
from tests.support.structs import build_struct

LEASE = 30_000
WORKER = caller("worker")
OTHER = caller("worker2")
INVOKER = caller("invoker")


class Service(msgspec.Struct, frozen=True):
    application_id: str = "worker"
    delivery: str = "pull"
    unregistered_at: int | None = None
    is_live: int = 1


def call(key: str = "k", **asked: object) -> Enqueue:
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "caller": INVOKER,
        "id": f"i-{key}",
        "service_id": "s",
        "idempotency_key": key,
        "request_digest": "d",
        "method": "m",
        "params": "null",
        "metadata": "{}",
        "source_session_id": None,
        "target_session_id": None,
        "timeout_ms": 1_000,
        "retry_policy": RetryPolicy(max_attempts=2, backoff_ms=100),
    }
    return build_struct(Enqueue, **(plain | asked))


def claim(most: int = 1, token: str = "t", by: Caller | None = WORKER, **asked: object) -> Claim:
    tokens = tuple(f"{token}{n or ''}" for n in range(most))
    return build_struct(Claim, zone_id=ZONE, caller=by, service_id="s", limit=most, attempt_tokens=tokens, **asked)


def complete(
    status: Literal["succeeded", "failed", "canceled"] = "succeeded",
    token: str | None = "t",
    *,
    retryable: bool = True,
    by: Caller | None = WORKER,
) -> Complete:
    return Complete(
        zone_id=ZONE,
        caller=by,
        id="i-k",
        status=status,
        result='"r"',
        error='"e"',
        retryable=retryable,
        attempt_token=token,
    )


def row(status: State = State.PENDING, **changed: object) -> Invocation:
    made = states.new_invocation(call(), "worker", "invoker", NOW - 10)
    if status is not State.PENDING:
        made = states.start_attempt(made, Attempt(AttemptOrigin.CLAIM, "worker tester", "t", LEASE), NOW - 5)
    if status not in (State.PENDING, State.RUNNING):
        made = states.end(made, status, NOW - 1)
    return msgspec.structs.replace(made, **changed)


def board(*rows: Invocation, now: int = NOW, service: Service | None = None, **known: object) -> BatchDecider:
    due = [r for r in rows if r.status is State.PENDING and r.available_at <= now]
    plain: dict[str, object] = {
        "now": now,
        "lease_ms": LEASE,
        "zone_problems": {ZONE: None},
        "services": {(ZONE, "s"): service or Service()},
        "rows": rows,
        "due": due,
    }
    return BatchDecider(build_struct(InvocationBatchInput, **(plain | known)))


def code(outcome: object) -> str:
    assert isinstance(outcome, Problem), outcome
    return outcome.code


def moved(outcome: object) -> Invocation:
    assert isinstance(outcome, Invocation), outcome
    return outcome


def leases(outcome: object) -> tuple[Invocation, ...]:
    assert isinstance(outcome, ClaimedInvocations), outcome
    return outcome.items


def told(on: BatchDecider) -> list[str]:
    return [each.type.removeprefix("invocation.") for each in on.events]


# -- calling


def test_a_call_is_made_once_and_shown_again_to_whoever_repeats_it() -> None:
    on = board()
    first, again = on.decide(call()), on.decide(call(id="other"))
    assert isinstance(first, EnqueuedInvocation)
    assert isinstance(again, EnqueuedInvocation)
    assert (first.created, again.created) == (True, False)
    assert again.invocation.id == first.invocation.id
    assert told(on) == ["created"]


def test_the_same_key_with_other_params_is_refused_and_a_replay_is_decided_before_everything_else() -> None:
    on = board(row(State.SUCCEEDED), services={}, zone_problems={ZONE: None})
    assert code(on.decide(call(request_digest="other"))) == "idempotency_key_conflict"
    assert isinstance(on.decide(call()), EnqueuedInvocation), "although its service is gone"


def test_a_call_to_an_unknown_or_unregistered_service_is_refused() -> None:
    assert code(board(services={}).decide(call())) == "agent_service_not_found"
    assert code(board(service=Service(unregistered_at=1)).decide(call())) == "agent_service_not_found"
    assert code(board(service=Service(is_live=0)).decide(call())) == "agent_service_not_found"


@pytest.mark.parametrize("named", ["source_session_id", "target_session_id"])
def test_a_call_belongs_to_live_sessions_that_are_awake(named: str) -> None:
    alive = session_row(id="x", application_id="invoker")
    ended = session_row(id="x", application_id="invoker", status=SessionState.TERMINATED)
    asleep = session_row(id="x", application_id="invoker", status=SessionState.SUSPENDED)
    stamped = session_row(id="x", application_id="invoker", terminated_at=NOW - 1)
    late = session_row(id="x", application_id="invoker", expires_at=NOW)

    def outcome(of: object) -> object:
        return board(sessions={(ZONE, "x"): of} if of else {}).decide(call(**{named: "x"}))

    assert isinstance(outcome(alive), EnqueuedInvocation)
    for gone in (None, ended, stamped, late):
        assert code(outcome(gone)) == "agent_session_not_found"
    assert code(outcome(asleep)) == "agent_suspended"


def test_only_the_application_of_the_source_may_invoke_for_it_or_whoever_was_given_that_power() -> None:
    theirs = {(ZONE, "x"): session_row(id="x", application_id="theirs")}
    asked = call(source_session_id="x")
    assert code(board(sessions=theirs).decide(asked)) == "invoker_ownership_required"
    powerful = caller("invoker", "coordinator.invoke_from:theirs")
    assert isinstance(board(sessions=theirs).decide(call(source_session_id="x", caller=powerful)), EnqueuedInvocation)


# -- claiming


def test_calls_are_given_out_in_the_order_in_which_they_became_due_and_each_to_one_holder() -> None:
    on = board()
    for key in "abc":
        on.decide(call(key))
    first = leases(on.decide(claim(2, "x")))
    second = leases(on.decide(claim(2, "y")))
    assert [each.id for each in (*first, *second)] == ["i-a", "i-b", "i-c"]
    assert [each.attempt_token for each in (*first, *second)] == ["x", "x1", "y"]
    assert leases(on.decide(claim(1, "z"))) == ()
    assert told(on) == ["created"] * 3 + ["started"] * 3


def test_an_attempt_is_counted_as_it_begins_and_has_a_lease_and_a_deadline() -> None:
    [taken] = leases(board(row()).decide(claim()))
    assert (taken.attempts, taken.status, taken.begun_by) == (1, State.RUNNING, AttemptOrigin.CLAIM)
    assert (taken.lease_expires_at, taken.deadline_at) == (NOW + LEASE, NOW + 1_000)


def test_the_same_claim_gives_the_same_leases_and_another_holder_nothing_of_them() -> None:
    on = board(row())
    [taken] = leases(on.decide(claim(claim_id="c")))
    [again] = leases(on.decide(claim(token="u", claim_id="c")))
    assert (again.id, again.attempts, again.attempt_token) == (taken.id, 1, "t")
    stranger = caller("worker", "agent:lifecycle", session_id=None)
    same_client_other_subject = msgspec.structs.replace(stranger, subject="somebody else")
    assert leases(on.decide(claim(claim_id="c", by=same_client_other_subject))) == ()


def test_only_the_services_application_may_claim_and_what_is_pushed_is_not_claimed() -> None:
    assert code(board(row()).decide(claim(by=INVOKER))) == "service_ownership_required"
    assert code(board(row(), service=Service(delivery="push")).decide(claim())) == "service_is_pushed"
    [taken] = leases(board(row(), service=Service(delivery="push")).decide(claim(by=None, is_push=True)))
    assert (taken.begun_by, taken.lease_expires_at) == (AttemptOrigin.PUSH, taken.deadline_at)


def test_what_waits_for_its_backoff_or_for_a_sleeping_session_is_not_given_out() -> None:
    assert leases(board(row(available_at=NOW + 1)).decide(claim())) == ()
    on = board(row(), contexts={(ZONE, "i-k"): InvocationContext(is_suspended=1)})
    assert leases(on.decide(claim())) == ()
    assert [each.parked for each in on.rows(on.changed)] == [1], "nor in the way of those after it any more"
    assert told(on) == []


@pytest.mark.parametrize(
    ("standing", "reason"),
    [
        (InvocationContext(sessions_expire_at=0), "session_ended"),
        (InvocationContext(sessions_expire_at=NOW), "session_ended"),
        (InvocationContext(service_gone=1), "service_unregistered"),
    ],
)
def test_what_belongs_to_what_has_ended_is_canceled_instead_of_given_out(
    standing: InvocationContext, reason: str
) -> None:
    dead, good = row(), msgspec.structs.replace(row(), id="i-2", idempotency_key="2")
    on = board(dead, good, contexts={(ZONE, "i-k"): standing})
    assert [each.id for each in leases(on.decide(claim()))] == ["i-2"]
    assert told(on) == ["canceled", "started"]
    assert on.events[0].reason == reason


@pytest.mark.parametrize("verb", ["start", "succeed", "fail", "beat", "release", "overdue"])
@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_whatever_is_asked_of_what_belongs_to_an_ended_session_it_is_canceled(verb: str, state: State) -> None:
    on = board(row(state), contexts={(ZONE, "i-k"): InvocationContext(sessions_expire_at=NOW)})
    outcome = on.decide(verbs()[verb])
    assert isinstance(outcome, Problem) is (verb != "overdue")
    assert told(on) == ["canceled"]
    assert leases(on.decide(claim())) == ()


def test_a_suspended_session_takes_no_work() -> None:
    speaker = caller("worker", session_id="x")
    asleep = {(ZONE, "x"): session_row(id="x", status=SessionState.SUSPENDED)}
    assert code(board(row(), sessions=asleep).decide(claim(by=speaker))) == "agent_suspended"


# -- reporting


def test_a_completion_counts_once_and_the_same_one_is_answered_again() -> None:
    on = board(row(State.RUNNING))
    done = moved(on.decide(complete()))
    assert (done.status, done.result_json, done.completed_at) == (State.SUCCEEDED, '"r"', NOW)
    assert moved(on.decide(complete())) == done
    assert code(on.decide(complete("failed", retryable=False))) == "invocation_not_completable"
    assert told(on) == ["succeeded"]


def test_a_failure_waits_for_its_backoff_and_the_last_one_is_dead() -> None:
    first = moved(board(row(State.RUNNING)).decide(complete("failed")))
    assert (first.status, first.available_at, first.attempts) == (State.PENDING, NOW + 100, 1)
    last = moved(board(row(State.RUNNING, attempts=2)).decide(complete("failed")))
    assert (last.status, last.error_json) == (State.DEAD, '"e"')


def test_a_failure_that_must_not_be_tried_again_is_failed() -> None:
    assert moved(board(row(State.RUNNING)).decide(complete("failed", retryable=False))).status is State.FAILED


def test_an_older_token_is_stale_and_no_token_is_only_good_for_whoever_started_it() -> None:
    assert code(board(row(State.RUNNING)).decide(complete(token="old"))) == "stale_attempt"
    assert code(board(row(State.RUNNING)).decide(complete(token=None))) == "attempt_token_required"
    started = board(row())
    moved(started.decide(Start(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t")))
    other = msgspec.structs.replace(WORKER, subject="somebody else")
    assert code(started.decide(complete(token=None, by=other))) == "attempt_token_required"
    assert moved(started.decide(complete(token=None))).status is State.SUCCEEDED


def test_a_token_whose_attempt_was_given_up_is_stale_although_no_other_attempt_has_begun() -> None:
    on = board(row(State.RUNNING, lease_expires_at=NOW))
    assert moved(on.decide(CheckOverdue(zone_id=ZONE, id="i-k"))).status is State.PENDING
    assert code(on.decide(complete())) == "stale_attempt"


def test_backoff_and_sleep_are_honoured_by_those_who_start() -> None:
    start = Start(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="a")
    assert code(board(row(available_at=NOW + 1)).decide(start)) == "invocation_not_startable"
    asleep = board(row(), contexts={(ZONE, "i-k"): InvocationContext(is_suspended=1)})
    assert code(asleep.decide(start)) == "invocation_not_startable"


def test_a_heartbeat_prolongs_the_lease_never_the_deadline_and_says_whether_to_stop() -> None:
    on = board(row(State.RUNNING, cancel_requested_at=NOW - 1))
    after = moved(on.decide(Heartbeat(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t")))
    assert after.lease_expires_at == NOW + LEASE
    assert after.deadline_at == row(State.RUNNING).deadline_at
    assert told(on) == []
    assert code(on.decide(Heartbeat(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="old"))) == "stale_attempt"


def test_a_lease_given_back_does_not_count_and_is_due_at_once() -> None:
    on = board(row(State.RUNNING))
    after = moved(on.decide(Release(zone_id=ZONE, id="i-k", attempt_token="t")))
    assert (after.status, after.attempts, after.available_at) == (State.PENDING, 0, NOW)
    assert [each.id for each in leases(on.decide(claim()))] == ["i-k"]


# -- ending


def test_what_waits_is_canceled_at_once_and_what_runs_when_its_holder_says_so() -> None:
    cancel = Cancel(zone_id=ZONE, caller=INVOKER, id="i-k", reason="why")
    assert moved(board(row()).decide(cancel)).status is State.CANCELED
    on = board(row(State.RUNNING))
    assert moved(on.decide(cancel)).status is State.RUNNING
    assert moved(on.decide(cancel)).status is State.RUNNING
    assert moved(on.decide(complete("succeeded"))).status is State.CANCELED
    assert told(on) == ["cancel_requested", "canceled"]


@pytest.mark.parametrize("passed", ["deadline_at", "lease_expires_at"])
def test_a_canceled_attempt_that_runs_out_is_canceled_not_tried_again(passed: str) -> None:
    on = board(row(State.RUNNING, cancel_requested_at=NOW - 1, **{passed: NOW}))
    assert moved(on.decide(CheckOverdue(zone_id=ZONE, id="i-k"))).status is State.CANCELED


def test_strangers_may_not_cancel() -> None:
    cancel = Cancel(zone_id=ZONE, caller=caller("stranger"), id="i-k", reason="why")
    assert code(board(row()).decide(cancel)) == "invoker_ownership_required"


def test_the_deadline_of_the_last_attempt_is_a_time_out_and_a_lost_lease_of_the_last_is_dead() -> None:
    late = board(row(State.RUNNING, attempts=2, deadline_at=NOW))
    assert moved(late.decide(CheckOverdue(zone_id=ZONE, id="i-k"))).status is State.TIMED_OUT
    silent = board(row(State.RUNNING, attempts=2, lease_expires_at=NOW))
    assert moved(silent.decide(CheckOverdue(zone_id=ZONE, id="i-k"))).status is State.DEAD


def test_what_is_not_overdue_any_more_is_left_alone() -> None:
    on = board(row(State.RUNNING))
    moved(on.decide(CheckOverdue(zone_id=ZONE, id="i-k")))
    assert not on.changed


def verbs() -> dict[str, InvocationCommand]:
    return {
        "claim": claim(),
        "start": Start(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="n"),
        "succeed": complete(),
        "fail": complete("failed"),
        "give up": complete("failed", retryable=False),
        "beat": Heartbeat(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t"),
        "cancel": Cancel(zone_id=ZONE, caller=INVOKER, id="i-k", reason="r"),
        "release": Release(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t"),
        "overdue": CheckOverdue(zone_id=ZONE, id="i-k"),
    }


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", verbs())
def test_every_state_and_verb_follows_the_arrows(state: State, verb: str) -> None:
    on = board(row(state))
    on.decide(verbs()[verb])
    for each in on.events:
        assert each.from_state is not None
        arrows = {(s, t) for moves in INVOCATION_STATES.transitions.values() for s, t in moves.items()}
        assert each.row.status is each.from_state or (each.from_state, each.row.status) in arrows
    if state in states.ENDED_STATES:
        assert not on.changed, "what has ended stays as it is"


steps = st.lists(
    st.sampled_from(
        ["call a", "call b", "claim", "claim 2", "fail", "succeed", "cancel", "release", "overdue", "later"]
    ),
    max_size=40,
)


@given(steps)
def test_whatever_is_asked_in_whatever_order_an_attempt_has_one_holder_and_nothing_ends_twice(plan: list[str]) -> None:
    rows: dict[str, Invocation] = {}
    tokens: dict[str, list[str]] = {}
    ends: dict[str, int] = {}
    now = NOW
    for number, step in enumerate(plan):
        if step == "later":
            now += 40_000
            continue
        on = board(*rows.values(), now=now)
        for ask in _asks(step, number, rows):
            on.decide(ask)
        for each in on.events:
            if each.type == "invocation.started":
                assert each.from_state is State.PENDING
                tokens.setdefault(each.row.id, []).append(each.row.attempt_token or "")
            if each.row.status in states.ENDED_STATES:
                ends[each.row.id] = ends.get(each.row.id, 0) + 1
        for ref in (*on.created, *on.changed):
            [now_row] = on.rows([ref])
            rows[now_row.id] = now_row
            assert 0 <= now_row.attempts <= now_row.max_attempts
    assert all(len(given) == len(set(given)) for given in tokens.values())
    assert all(count == 1 for count in ends.values())


def _asks(step: str, number: int, rows: dict[str, Invocation]) -> list[InvocationCommand]:
    if step.startswith("call"):
        return [call(step[-1])]
    if step.startswith("claim"):
        return [claim(2 if step.endswith("2") else 1, f"t{number}-")]
    held = [(r.id, r.attempt_token or "") for r in rows.values()]
    if step in ("fail", "succeed"):
        status: Literal["failed", "succeeded"] = "failed" if step == "fail" else "succeeded"
        return [msgspec.structs.replace(complete(status, token), id=name) for name, token in held]
    if step == "cancel":
        return [Cancel(zone_id=ZONE, caller=INVOKER, id=name, reason="r") for name, _ in held]
    if step == "release":
        return [Release(zone_id=ZONE, caller=WORKER, id=name, attempt_token=token) for name, token in held]
    return [CheckOverdue(zone_id=ZONE, id=name) for name, _ in held]
