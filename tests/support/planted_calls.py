"""Breaches of what clients are promised, each planted into a true history by the smallest change that makes it one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.maintenance.history_checker.model import KeyRow
from tests.support.histories import APP, ZONE, Plant, Written

replace = msgspec.structs.replace


def begun_while_another_ran(w: Written) -> None:
    w.remove(w.find("invocation.retried", "silent"))


def begun_after_its_end(w: Written) -> None:
    w.insert(len(w.events), replace(w.events[w.find("invocation.started", "back")], data='{"attempt": 2}'))
    w.insert(len(w.events), replace(w.events[w.find("invocation.failed", "back")], data='{"attempt": 2}'))


def attempts_skipped(w: Written) -> None:
    w.change(w.find("invocation.started", "hopeless", 1), attempt=3)
    w.change(w.find("invocation.dead", "hopeless"), attempt=3)
    for i, call in enumerate(w.calls):
        if call.op == "claim" and call.response.items[0].attempt_token == "hopeless-2-w1":
            lease = replace(call.response.items[0], attempt=3)
            w.calls[i] = replace(call, optional_response=replace(call.response, items=[lease]))


def one_token_to_two(w: Written) -> None:
    lease = {"id": "well", "attempt": 1, "attempt_token": "well-1-w1"}
    w.call("claim", 200, {"service_id": "svc"}, {"items": [lease]}, client="w2")


def one_attempt_under_two_tokens(w: Written) -> None:
    lease = {"id": "well", "attempt": 1, "attempt_token": "another"}
    w.call("claim", 200, {"service_id": "svc"}, {"items": [lease]}, client="w2")


def started_and_claimed(w: Written) -> None:
    w.call("start", 200, {"id": "well"}, {"id": "well", "attempt": 1, "attempt_token": "own"}, client="w3")


HOLDERS: Sequence[Plant] = (
    begun_while_another_ran,
    begun_after_its_end,
    attempts_skipped,
    one_token_to_two,
    one_attempt_under_two_tokens,
    started_and_claimed,
)


def silent_holder_believed(w: Written) -> None:
    """The one whose lease had run out said that it was done, and was told so."""
    asked = {"id": "silent", "attempt_token": "silent-1-w1", "status": "succeeded"}
    w.call("complete", 200, asked, {"id": "silent", "status": "succeeded"}, client="w1")


def completed_after_giving_it_back(w: Written) -> None:
    w.invoke("late")
    lease = w.claim("late", 1, "w1")
    w.move("late", "released", "pending", 0)
    asked = {"id": "late", "attempt_token": lease.attempt_token, "status": "succeeded"}
    w.call("complete", 200, asked, {"id": "late", "status": "succeeded"}, client="w1")


def success_where_the_log_has_a_failure(w: Written) -> None:
    asked = {"id": "hopeless", "attempt_token": "hopeless-2-w1", "status": "succeeded"}
    w.call("complete", 200, asked, {"id": "hopeless", "status": "succeeded"}, client="w1")


def released_after_it_was_retried(w: Written) -> None:
    w.call("release", 200, {"id": "silent", "attempt_token": "silent-1-w1"}, {}, client="w1")


STALE: Sequence[Plant] = (
    silent_holder_believed,
    completed_after_giving_it_back,
    success_where_the_log_has_a_failure,
    released_after_it_was_retried,
)


def a_session_lost(w: Written) -> None:
    w.call("spawn", 201, {"application_id": APP}, {"id": "gone", "status": "active"})


def a_session_under_another_parent(w: Written) -> None:
    call = next(call for call in w.calls if call.response.id == "twig")
    w.calls[w.calls.index(call)] = replace(call, request=replace(call.request, parent_id="right"))


def an_invocation_lost(w: Written) -> None:
    w.call("invoke", 201, {"service_id": "svc", "idempotency_key": "x"}, {"id": "gone", "status": "pending"})


def an_end_lost(w: Written) -> None:
    w.call("terminate", 204, {"id": "twig"})


def a_suspension_lost(w: Written) -> None:
    w.call("suspend", 200, {"id": "left"}, {"suspended": 2})


def a_delegation_lost(w: Written) -> None:
    w.call("delegate", 201, {"source_session_id": "right"}, {"id": "gone-edge"})


def a_revocation_lost(w: Written) -> None:
    w.delegate("edge-9", "right", "twig")
    w.call("revoke", 200, {"id": "edge-9"}, {"revoked_edges": 1})


def a_completion_lost(w: Written) -> None:
    w.invoke("open")
    lease = w.claim("open", 1, "w1")
    asked = {"id": "open", "attempt_token": lease.attempt_token, "status": "succeeded"}
    w.call("complete", 200, asked, {"id": "open", "status": "succeeded"}, client="w1")


def a_cancellation_lost(w: Written) -> None:
    w.call("cancel", 200, {"id": "back"}, {"id": "back", "status": "canceled"})


def a_service_lost(w: Written) -> None:
    w.call("register", 201, {"application_id": APP}, {"id": "svc-2"})


LOST: Sequence[Plant] = (
    a_session_lost,
    a_session_under_another_parent,
    an_invocation_lost,
    an_end_lost,
    a_suspension_lost,
    a_delegation_lost,
    a_revocation_lost,
    a_completion_lost,
    a_cancellation_lost,
    a_service_lost,
)


def a_refused_key_bound(w: Written) -> None:
    w.keys["k6"] = KeyRow(ZONE, APP, "k6", "right")


def a_refused_invocation_made(w: Written) -> None:
    w.invoke("unwanted")
    w.calls[-1] = replace(w.calls[-1], status=404, optional_response=None)


REFUSED: Sequence[Plant] = (a_refused_invocation_made,)


def before_its_time(w: Written) -> None:
    """Asked for when a later one had been answered."""
    index = next(i for i, call in enumerate(w.calls) if call.response.id == "root-2" and call.has_created)
    w.calls[index] = replace(w.calls[index], started=w.now + 100.0, ended=w.now + 110.0)


def after_an_end_that_came_later(w: Written) -> None:
    """The end was acknowledged before the spawn was asked for, and stands behind it."""
    w.end("unheard")
    w.call("terminate", 204, {"id": "unheard"})
    index = next(i for i, call in enumerate(w.calls) if call.response.id == "twig")
    w.calls[index] = replace(w.calls[index], started=w.now + 100.0, ended=w.now + 110.0)


ORDER: Sequence[Plant] = (before_its_time, after_an_end_that_came_later)
