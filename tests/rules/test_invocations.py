"""Rules of invocations: every command in every state, and invariants under random commands."""

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
from quarterdeck.domain.invocations.rules import INVOCATION_STATES, states
from quarterdeck.domain.invocations.rules.decider import BatchDecider, InvocationBatchInput
from quarterdeck.domain.invocations.rules.states import Attempt
from quarterdeck.domain.sessions.model import State as SessionState
from tests.support.builders import NOW, ZONE, caller, session_row
from tests.support.structs import build_struct

LEASE = 30_000
WORKER = caller("worker")
OTHER_WORKER = caller("worker2")
INVOKER = caller("invoker")


class StubService(msgspec.Struct, frozen=True):
    application_id: str = "worker"
    delivery: str = "pull"
    unregistered_at: int | None = None
    is_live: int = 1


def enqueue(key: str = "k", **fields: object) -> Enqueue:
    defaults: dict[str, object] = {
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
    return build_struct(Enqueue, **(defaults | fields))


def claim(limit: int = 1, token: str = "t", claimer: Caller | None = WORKER, **fields: object) -> Claim:
    tokens = tuple(f"{token}{n or ''}" for n in range(limit))
    return build_struct(
        Claim, zone_id=ZONE, caller=claimer, service_id="s", limit=limit, attempt_tokens=tokens, **fields
    )


def complete(
    status: Literal["succeeded", "failed", "canceled"] = "succeeded",
    token: str | None = "t",
    *,
    retryable: bool = True,
    completer: Caller | None = WORKER,
) -> Complete:
    return Complete(
        zone_id=ZONE,
        caller=completer,
        id="i-k",
        status=status,
        result='"r"',
        error='"e"',
        retryable=retryable,
        attempt_token=token,
    )


def row(status: State = State.PENDING, **changes: object) -> Invocation:
    invocation = states.new_invocation(enqueue(), "worker", "invoker", NOW - 10)
    if status is not State.PENDING:
        invocation = states.start_attempt(
            invocation, Attempt(AttemptOrigin.CLAIM, "worker tester", "t", LEASE), NOW - 5
        )
    if status not in (State.PENDING, State.RUNNING):
        invocation = states.end(invocation, status, NOW - 1)
    return msgspec.structs.replace(invocation, **changes)


def decider_with(
    *rows: Invocation, now: int = NOW, service: StubService | None = None, **fields: object
) -> BatchDecider:
    due = [row for row in rows if row.status is State.PENDING and row.available_at <= now]
    defaults: dict[str, object] = {
        "now": now,
        "lease_ms": LEASE,
        "zone_problems": {ZONE: None},
        "services": {(ZONE, "s"): service or StubService()},
        "rows": rows,
        "due": due,
        "caller_sessions": fields.get("sessions", {}),
    }
    return BatchDecider(build_struct(InvocationBatchInput, **(defaults | fields)))


def code(outcome: object) -> str:
    assert isinstance(outcome, Problem), outcome
    return outcome.code


def expect_invocation(outcome: object) -> Invocation:
    assert isinstance(outcome, Invocation), outcome
    return outcome


def expect_claimed(outcome: object) -> tuple[Invocation, ...]:
    assert isinstance(outcome, ClaimedInvocations), outcome
    return outcome.items


def updated_rows(decider: BatchDecider) -> list[Invocation]:
    return [after for _, after in decider.rows.updates()]


def event_types(decider: BatchDecider) -> list[str]:
    return [event.type.removeprefix("invocation.") for event in decider.rows.events]


# -- enqueue


def test_repeated_key_returns_the_first_invocation() -> None:
    decider = decider_with()
    first, second = decider.decide(enqueue()), decider.decide(enqueue(id="other"))
    assert isinstance(first, EnqueuedInvocation)
    assert isinstance(second, EnqueuedInvocation)
    assert (first.created, second.created) == (True, False)
    assert second.invocation.id == first.invocation.id
    assert event_types(decider) == ["created"]


def test_key_conflict_and_replay_are_decided_before_the_service_check() -> None:
    decider = decider_with(row(State.SUCCEEDED), services={}, zone_problems={ZONE: None})
    assert code(decider.decide(enqueue(request_digest="other"))) == "idempotency_key_conflict"
    assert isinstance(decider.decide(enqueue()), EnqueuedInvocation), "although its service is unregistered"


def test_invocation_of_an_unknown_or_unregistered_service_is_refused() -> None:
    assert code(decider_with(services={}).decide(enqueue())) == "agent_service_not_found"
    assert code(decider_with(service=StubService(unregistered_at=1)).decide(enqueue())) == "agent_service_not_found"
    assert code(decider_with(service=StubService(is_live=0)).decide(enqueue())) == "agent_service_not_found"


@pytest.mark.parametrize("field", ["source_session_id", "target_session_id"])
def test_source_and_target_sessions_must_be_live_and_not_suspended(field: str) -> None:
    live = session_row(id="x", application_id="invoker")
    ended = session_row(id="x", application_id="invoker", status=SessionState.TERMINATED)
    suspended = session_row(id="x", application_id="invoker", status=SessionState.SUSPENDED)
    marked = session_row(id="x", application_id="invoker", terminated_at=NOW - 1)
    expired = session_row(id="x", application_id="invoker", expires_at=NOW)

    def outcome(session: object) -> object:
        return decider_with(sessions={(ZONE, "x"): session} if session else {}).decide(enqueue(**{field: "x"}))

    assert isinstance(outcome(live), EnqueuedInvocation)
    for absent in (None, ended, marked, expired):
        assert code(outcome(absent)) == "agent_session_not_found"
    assert code(outcome(suspended)) == "agent_suspended"


def test_invoking_for_a_session_requires_its_application_or_a_scope() -> None:
    sessions = {(ZONE, "x"): session_row(id="x", application_id="other-app")}
    command = enqueue(source_session_id="x")
    assert code(decider_with(sessions=sessions).decide(command)) == "invoker_ownership_required"
    scoped_caller = caller("invoker", "coordinator.invoke_from:other-app")
    assert isinstance(
        decider_with(sessions=sessions).decide(enqueue(source_session_id="x", caller=scoped_caller)), EnqueuedInvocation
    )


# -- claim


def test_claims_return_invocations_in_due_order_each_to_one_holder() -> None:
    decider = decider_with()
    for key in "abc":
        decider.decide(enqueue(key))
    first = expect_claimed(decider.decide(claim(2, "x")))
    second = expect_claimed(decider.decide(claim(2, "y")))
    assert [invocation.id for invocation in (*first, *second)] == ["i-a", "i-b", "i-c"]
    assert [invocation.attempt_token for invocation in (*first, *second)] == ["x", "x1", "y"]
    assert expect_claimed(decider.decide(claim(1, "z"))) == ()
    assert event_types(decider) == ["created"] * 3 + ["started"] * 3


def test_attempt_counts_from_its_start_and_has_a_lease_and_a_deadline() -> None:
    [attempt] = expect_claimed(decider_with(row()).decide(claim()))
    assert (attempt.attempts, attempt.status, attempt.begun_by) == (1, State.RUNNING, AttemptOrigin.CLAIM)
    assert (attempt.lease_expires_at, attempt.deadline_at) == (NOW + LEASE, NOW + 1_000)


def test_repeated_claim_returns_the_same_attempts_only_to_the_same_holder() -> None:
    decider = decider_with(row())
    [first] = expect_claimed(decider.decide(claim(claim_id="c")))
    [second] = expect_claimed(decider.decide(claim(token="u", claim_id="c")))
    assert (second.id, second.attempts, second.attempt_token) == (first.id, 1, "t")
    same_client = caller("worker", "agent:lifecycle", session_id=None)
    other_subject = msgspec.structs.replace(same_client, subject="other-subject")
    assert expect_claimed(decider.decide(claim(claim_id="c", claimer=other_subject))) == ()


def test_only_the_application_of_a_pull_service_can_claim() -> None:
    assert code(decider_with(row()).decide(claim(claimer=INVOKER))) == "service_ownership_required"
    assert code(decider_with(row(), service=StubService(delivery="push")).decide(claim())) == "service_is_pushed"
    [attempt] = expect_claimed(
        decider_with(row(), service=StubService(delivery="push")).decide(claim(claimer=None, is_push=True))
    )
    assert (attempt.begun_by, attempt.lease_expires_at) == (AttemptOrigin.PUSH, attempt.deadline_at)


def test_invocation_in_backoff_or_of_a_suspended_session_is_not_claimed() -> None:
    assert expect_claimed(decider_with(row(available_at=NOW + 1)).decide(claim())) == ()
    decider = decider_with(row(), contexts={(ZONE, "i-k"): InvocationContext(is_suspended=1)})
    assert expect_claimed(decider.decide(claim())) == ()
    assert [invocation.parked for invocation in updated_rows(decider)] == [1], "parked, so it does not block later ones"
    assert event_types(decider) == []


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (InvocationContext(sessions_expire_at=0), "session_ended"),
        (InvocationContext(sessions_expire_at=NOW), "session_ended"),
        (InvocationContext(service_gone=1), "service_unregistered"),
    ],
)
def test_claim_cancels_invocations_of_ended_sessions_and_services(context: InvocationContext, reason: str) -> None:
    orphaned, claimable = row(), msgspec.structs.replace(row(), id="i-2", idempotency_key="2")
    decider = decider_with(orphaned, claimable, contexts={(ZONE, "i-k"): context})
    assert [invocation.id for invocation in expect_claimed(decider.decide(claim()))] == ["i-2"]
    assert event_types(decider) == ["canceled", "started"]
    assert decider.rows.events[0].data["reason"] == reason


@pytest.mark.parametrize("verb", ["start", "succeed", "fail", "heartbeat", "release", "overdue"])
@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_every_command_cancels_an_invocation_of_an_ended_session(verb: str, state: State) -> None:
    decider = decider_with(row(state), contexts={(ZONE, "i-k"): InvocationContext(sessions_expire_at=NOW)})
    outcome = decider.decide(verb_commands()[verb])
    assert isinstance(outcome, Problem) is (verb != "overdue")
    assert event_types(decider) == ["canceled"]
    assert expect_claimed(decider.decide(claim())) == ()


def test_suspended_session_cannot_claim() -> None:
    suspended_caller = caller("worker", session_id="x")
    sessions = {(ZONE, "x"): session_row(id="x", status=SessionState.SUSPENDED)}
    assert code(decider_with(row(), sessions=sessions).decide(claim(claimer=suspended_caller))) == "agent_suspended"


# -- completion and heartbeat


def test_completion_takes_effect_once_and_repeats_return_the_same() -> None:
    decider = decider_with(row(State.RUNNING))
    completed = expect_invocation(decider.decide(complete()))
    assert (completed.status, completed.result_json, completed.completed_at) == (State.SUCCEEDED, '"r"', NOW)
    assert expect_invocation(decider.decide(complete())) == completed
    assert code(decider.decide(complete("failed", retryable=False))) == "invocation_not_completable"
    assert event_types(decider) == ["succeeded"]


def test_failure_is_retried_after_its_backoff_and_the_last_is_dead() -> None:
    first = expect_invocation(decider_with(row(State.RUNNING)).decide(complete("failed")))
    assert (first.status, first.available_at, first.attempts) == (State.PENDING, NOW + 100, 1)
    last = expect_invocation(decider_with(row(State.RUNNING, attempts=2)).decide(complete("failed")))
    assert (last.status, last.error_json) == (State.DEAD, '"e"')


def test_failure_that_is_not_retryable_is_failed() -> None:
    assert (
        expect_invocation(decider_with(row(State.RUNNING)).decide(complete("failed", retryable=False))).status
        is State.FAILED
    )


def test_old_token_is_stale_and_a_missing_token_is_valid_only_for_the_starter() -> None:
    assert code(decider_with(row(State.RUNNING)).decide(complete(token="old"))) == "stale_attempt"
    assert code(decider_with(row(State.RUNNING)).decide(complete(token=None))) == "attempt_token_required"
    started = decider_with(row())
    expect_invocation(started.decide(Start(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t")))
    other = msgspec.structs.replace(WORKER, subject="other-subject")
    assert code(started.decide(complete(token=None, completer=other))) == "attempt_token_required"
    assert expect_invocation(started.decide(complete(token=None))).status is State.SUCCEEDED


def test_token_of_an_abandoned_attempt_is_stale_before_the_next_attempt() -> None:
    decider = decider_with(row(State.RUNNING, lease_expires_at=NOW))
    assert expect_invocation(decider.decide(CheckOverdue(zone_id=ZONE, id="i-k"))).status is State.PENDING
    assert code(decider.decide(complete())) == "stale_attempt"


def test_start_is_refused_during_backoff_or_suspension() -> None:
    start = Start(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="a")
    assert code(decider_with(row(available_at=NOW + 1)).decide(start)) == "invocation_not_startable"
    suspended = decider_with(row(), contexts={(ZONE, "i-k"): InvocationContext(is_suspended=1)})
    assert code(suspended.decide(start)) == "invocation_not_startable"


def test_heartbeat_extends_the_lease_but_not_the_deadline() -> None:
    decider = decider_with(row(State.RUNNING, cancel_requested_at=NOW - 1))
    after = expect_invocation(decider.decide(Heartbeat(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t")))
    assert after.lease_expires_at == NOW + LEASE
    assert after.deadline_at == row(State.RUNNING).deadline_at
    assert event_types(decider) == []
    assert (
        code(decider.decide(Heartbeat(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="old"))) == "stale_attempt"
    )


def test_released_attempt_does_not_count_and_is_due_at_once() -> None:
    decider = decider_with(row(State.RUNNING))
    after = expect_invocation(decider.decide(Release(zone_id=ZONE, id="i-k", attempt_token="t")))
    assert (after.status, after.attempts, after.available_at) == (State.PENDING, 0, NOW)
    assert [invocation.id for invocation in expect_claimed(decider.decide(claim()))] == ["i-k"]


# -- cancel and expiry


def test_pending_invocation_is_canceled_at_once_and_a_running_one_on_completion() -> None:
    cancel = Cancel(zone_id=ZONE, caller=INVOKER, id="i-k", reason="test")
    assert expect_invocation(decider_with(row()).decide(cancel)).status is State.CANCELED
    decider = decider_with(row(State.RUNNING))
    assert expect_invocation(decider.decide(cancel)).status is State.RUNNING
    assert expect_invocation(decider.decide(cancel)).status is State.RUNNING
    assert expect_invocation(decider.decide(complete("succeeded"))).status is State.CANCELED
    assert event_types(decider) == ["cancel_requested", "canceled"]


@pytest.mark.parametrize("field", ["deadline_at", "lease_expires_at"])
def test_overdue_attempt_with_a_cancel_request_is_canceled_not_retried(field: str) -> None:
    decider = decider_with(row(State.RUNNING, cancel_requested_at=NOW - 1, **{field: NOW}))
    assert expect_invocation(decider.decide(CheckOverdue(zone_id=ZONE, id="i-k"))).status is State.CANCELED


def test_another_application_cannot_cancel() -> None:
    cancel = Cancel(zone_id=ZONE, caller=caller("other-app"), id="i-k", reason="test")
    assert code(decider_with(row()).decide(cancel)) == "invoker_ownership_required"


def test_last_attempt_past_its_deadline_times_out_and_past_its_lease_is_dead() -> None:
    past_deadline = decider_with(row(State.RUNNING, attempts=2, deadline_at=NOW))
    assert expect_invocation(past_deadline.decide(CheckOverdue(zone_id=ZONE, id="i-k"))).status is State.TIMED_OUT
    past_lease = decider_with(row(State.RUNNING, attempts=2, lease_expires_at=NOW))
    assert expect_invocation(past_lease.decide(CheckOverdue(zone_id=ZONE, id="i-k"))).status is State.DEAD


def test_attempt_that_is_not_overdue_is_unchanged() -> None:
    decider = decider_with(row(State.RUNNING))
    expect_invocation(decider.decide(CheckOverdue(zone_id=ZONE, id="i-k")))
    assert not decider.rows.updates()


def verb_commands() -> dict[str, InvocationCommand]:
    return {
        "claim": claim(),
        "start": Start(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="n"),
        "succeed": complete(),
        "fail": complete("failed"),
        "fail-permanently": complete("failed", retryable=False),
        "heartbeat": Heartbeat(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t"),
        "cancel": Cancel(zone_id=ZONE, caller=INVOKER, id="i-k", reason="r"),
        "release": Release(zone_id=ZONE, caller=WORKER, id="i-k", attempt_token="t"),
        "overdue": CheckOverdue(zone_id=ZONE, id="i-k"),
    }


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", verb_commands())
def test_every_verb_in_every_state_follows_the_transition_table(state: State, verb: str) -> None:
    decider = decider_with(row(state))
    decider.decide(verb_commands()[verb])
    for event in decider.rows.events:
        assert event.from_state is not None
        transitions = {
            (source, target) for table in INVOCATION_STATES.transitions.values() for source, target in table.items()
        }
        assert event.row.status is event.from_state or (event.from_state, event.row.status) in transitions
    if state in states.ENDED_STATES:
        assert not decider.rows.updates(), "an ended invocation never changes"


steps = st.lists(
    st.sampled_from(
        ["enqueue a", "enqueue b", "claim", "claim 2", "fail", "succeed", "cancel", "release", "overdue", "wait"]
    ),
    max_size=40,
)


@given(steps)
def test_random_commands_give_every_attempt_one_holder_and_every_invocation_one_end(plan: list[str]) -> None:
    rows: dict[str, Invocation] = {}
    tokens: dict[str, list[str]] = {}
    ends: dict[str, int] = {}
    now = NOW
    for number, step in enumerate(plan):
        if step == "wait":
            now += 40_000
            continue
        decider = decider_with(*rows.values(), now=now)
        for command in _commands(step, number, rows):
            decider.decide(command)
        for event in decider.rows.events:
            if event.type == "invocation.started":
                assert event.from_state is State.PENDING
                tokens.setdefault(event.row.id, []).append(event.row.attempt_token or "")
            if event.row.status in states.ENDED_STATES:
                ends[event.row.id] = ends.get(event.row.id, 0) + 1
        for current in (*decider.rows.inserts(), *updated_rows(decider)):
            rows[current.id] = current
            assert 0 <= current.attempts <= current.max_attempts
    assert all(len(used) == len(set(used)) for used in tokens.values())
    assert all(count == 1 for count in ends.values())


def _commands(step: str, number: int, rows: dict[str, Invocation]) -> list[InvocationCommand]:
    if step.startswith("enqueue"):
        return [enqueue(step[-1])]
    if step.startswith("claim"):
        return [claim(2 if step.endswith("2") else 1, f"t{number}-")]
    held = [(row.id, row.attempt_token or "") for row in rows.values()]
    if step in ("fail", "succeed"):
        status: Literal["failed", "succeeded"] = "failed" if step == "fail" else "succeeded"
        return [msgspec.structs.replace(complete(status, token), id=name) for name, token in held]
    if step == "cancel":
        return [Cancel(zone_id=ZONE, caller=INVOKER, id=name, reason="r") for name, _ in held]
    if step == "release":
        return [Release(zone_id=ZONE, caller=WORKER, id=name, attempt_token=token) for name, token in held]
    return [CheckOverdue(zone_id=ZONE, id=name) for name, _ in held]
