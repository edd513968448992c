"""Violations of what clients are promised. Each function plants one into a valid history by the smallest change."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.maintenance.history_checker.model import KeyRow
from tests.support.history_builder import APP, ZONE, HistoryBuilder, PlantViolation

replace = msgspec.structs.replace


def started_while_running(history: HistoryBuilder) -> None:
    history.remove_event(history.find_event("invocation.retried", "silent"))


def started_after_end(history: HistoryBuilder) -> None:
    history.insert_event(
        len(history.events),
        replace(history.events[history.find_event("invocation.started", "back")], data='{"attempt": 2}'),
    )
    history.insert_event(
        len(history.events),
        replace(history.events[history.find_event("invocation.failed", "back")], data='{"attempt": 2}'),
    )


def attempt_number_skipped(history: HistoryBuilder) -> None:
    history.change_event(history.find_event("invocation.started", "exhausted", 1), attempt=3)
    history.change_event(history.find_event("invocation.dead", "exhausted"), attempt=3)
    for i, call in enumerate(history.calls):
        if call.op == "claim" and call.response.items[0].attempt_token == "exhausted-2-w1":
            lease = replace(call.response.items[0], attempt=3)
            history.calls[i] = replace(call, optional_response=replace(call.response, items=[lease]))


def one_token_for_two_clients(history: HistoryBuilder) -> None:
    lease = {"id": "well", "attempt": 1, "attempt_token": "well-1-w1"}
    history.add_call("claim", 200, {"service_id": "svc"}, {"items": [lease]}, client="w2")


def two_tokens_for_one_attempt(history: HistoryBuilder) -> None:
    lease = {"id": "well", "attempt": 1, "attempt_token": "another"}
    history.add_call("claim", 200, {"service_id": "svc"}, {"items": [lease]}, client="w2")


def started_and_claimed(history: HistoryBuilder) -> None:
    history.add_call("start", 200, {"id": "well"}, {"id": "well", "attempt": 1, "attempt_token": "own"}, client="w3")


MULTIPLE_HOLDERS: Sequence[PlantViolation] = (
    started_while_running,
    started_after_end,
    attempt_number_skipped,
    one_token_for_two_clients,
    two_tokens_for_one_attempt,
    started_and_claimed,
)


def stale_completion_accepted(history: HistoryBuilder) -> None:
    """A client whose lease had expired reported success, and got a success response."""
    request = {"id": "silent", "attempt_token": "silent-1-w1", "status": "succeeded"}
    history.add_call("complete", 200, request, {"id": "silent", "status": "succeeded"}, client="w1")


def completed_after_release(history: HistoryBuilder) -> None:
    history.invoke("late")
    lease = history.claim("late", 1, "w1")
    history.change_state("late", "released", "pending", 0)
    request = {"id": "late", "attempt_token": lease.attempt_token, "status": "succeeded"}
    history.add_call("complete", 200, request, {"id": "late", "status": "succeeded"}, client="w1")


def success_despite_logged_failure(history: HistoryBuilder) -> None:
    request = {"id": "exhausted", "attempt_token": "exhausted-2-w1", "status": "succeeded"}
    history.add_call("complete", 200, request, {"id": "exhausted", "status": "succeeded"}, client="w1")


def released_after_retry(history: HistoryBuilder) -> None:
    history.add_call("release", 200, {"id": "silent", "attempt_token": "silent-1-w1"}, {}, client="w1")


STALE_COMPLETIONS: Sequence[PlantViolation] = (
    stale_completion_accepted,
    completed_after_release,
    success_despite_logged_failure,
    released_after_retry,
)


def session_lost(history: HistoryBuilder) -> None:
    history.add_call("spawn", 201, {"application_id": APP}, {"id": "gone", "status": "active"})


def session_under_other_parent(history: HistoryBuilder) -> None:
    call = next(call for call in history.calls if call.response.id == "twig")
    history.calls[history.calls.index(call)] = replace(call, request=replace(call.request, parent_id="right"))


def invocation_lost(history: HistoryBuilder) -> None:
    history.add_call("invoke", 201, {"service_id": "svc", "idempotency_key": "x"}, {"id": "gone", "status": "pending"})


def end_lost(history: HistoryBuilder) -> None:
    history.add_call("terminate", 204, {"id": "twig"})


def suspension_lost(history: HistoryBuilder) -> None:
    history.add_call("suspend", 200, {"id": "left"}, {"suspended": 2})


def delegation_lost(history: HistoryBuilder) -> None:
    history.add_call("delegate", 201, {"source_session_id": "right"}, {"id": "gone-edge"})


def revocation_lost(history: HistoryBuilder) -> None:
    history.delegate("edge-9", "right", "twig")
    history.add_call("revoke", 200, {"id": "edge-9"}, {"revoked_edges": 1})


def completion_lost(history: HistoryBuilder) -> None:
    history.invoke("open")
    lease = history.claim("open", 1, "w1")
    request = {"id": "open", "attempt_token": lease.attempt_token, "status": "succeeded"}
    history.add_call("complete", 200, request, {"id": "open", "status": "succeeded"}, client="w1")


def cancellation_lost(history: HistoryBuilder) -> None:
    history.add_call("cancel", 200, {"id": "back"}, {"id": "back", "status": "canceled"})


def service_lost(history: HistoryBuilder) -> None:
    history.add_call("register", 201, {"application_id": APP}, {"id": "svc-2"})


LOST_ACKNOWLEDGEMENTS: Sequence[PlantViolation] = (
    session_lost,
    session_under_other_parent,
    invocation_lost,
    end_lost,
    suspension_lost,
    delegation_lost,
    revocation_lost,
    completion_lost,
    cancellation_lost,
    service_lost,
)


def refused_key_stored(history: HistoryBuilder) -> None:
    history.keys["k6"] = KeyRow(ZONE, APP, "k6", "right")


def refused_invocation_created(history: HistoryBuilder) -> None:
    history.invoke("refused")
    history.calls[-1] = replace(history.calls[-1], status=404, optional_response=None)


REFUSALS_WITH_EFFECT: Sequence[PlantViolation] = (refused_invocation_created,)


def logged_before_request(history: HistoryBuilder) -> None:
    """Its request started after a later event was acknowledged."""
    index = next(i for i, call in enumerate(history.calls) if call.response.id == "root-2" and call.has_created)
    history.calls[index] = replace(history.calls[index], started=history.clock + 100.0, ended=history.clock + 110.0)


def requested_after_later_end(history: HistoryBuilder) -> None:
    """The end was acknowledged before the spawn was requested, but the log has it after the spawn."""
    history.end_session("unanswered")
    history.add_call("terminate", 204, {"id": "unanswered"})
    index = next(i for i, call in enumerate(history.calls) if call.response.id == "twig")
    history.calls[index] = replace(history.calls[index], started=history.clock + 100.0, ended=history.clock + 110.0)


ORDER_VIOLATIONS: Sequence[PlantViolation] = (logged_before_request, requested_after_later_end)
