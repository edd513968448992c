"""Breaches of every promise, each planted into a true history by the smallest change that makes it one."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from quarterdeck.upkeep.history.model import CascadeRow, KeyRow, SessionRow
from tests.support.histories import APP, LIMITS, START, ZONE, Plant, Written

replace = msgspec.structs.replace


def told_twice(w: Written) -> None:
    w.event("session.terminate", "short", "terminated", "terminated", cause="short")


def ended_unborn(w: Written) -> None:
    w.event("session.terminate", "nobody", "active", "terminated", cause="nobody")


def parent_first(w: Written) -> None:
    """In the log only; the rows end the same."""
    leaf = w.remove(w.find("session.terminate", "leaf"))
    w.insert(w.find("session.terminate", "left") + 1, leaf)


def gap(w: Written) -> None:
    w.events[-1] = replace(w.events[-1], pos=len(w.events) + 1)


def states_jump(w: Written) -> None:
    w.change(w.find("session.resume", "left"), from_state="active")


def unreadable(w: Written) -> None:
    w.insert(
        w.find("invocation.cancel_requested", "stopped"), replace(w.events[0], type="zone.note", data="{")
    )


STORY: Sequence[Plant] = (told_twice, ended_unborn, parent_first, gap, states_jump, unreadable)


def two_under_one_key(w: Written) -> None:
    w.spawn("double", key="k2")


def two_though_one_answer_never_came(w: Written) -> None:
    """Only the table of keys knows of the second."""
    w.settle("unheard", "unheard")
    w.born("double")
    w.keys["k2"] = KeyRow(ZONE, APP, "k2", "double")


def key_freed_too_early(w: Written) -> None:
    """Spawned again a moment before the first's time ran out."""
    at = w.sessions["short"].expires_at - 1
    index = w.find("session.spawn", "short-2")
    for i in range(w.find("session.spawn", "short") + 1, index + 1):
        w.events[i] = replace(w.events[i], at=min(w.events[i].at, at))


def one_session_for_two_keys(w: Written) -> None:
    w.call(
        "spawn", 200, {"application_id": APP, "idempotency_key": "k8"}, {"id": "right", "status": "active"}
    )


def made_twice(w: Written) -> None:
    w.call(
        "spawn", 201, {"application_id": APP, "idempotency_key": "k2"}, {"id": "right", "status": "active"}
    )


def two_invocations_of_one_key(w: Written) -> None:
    w.invoke("again")
    w.invocations["again"] = replace(w.invocations["again"], idempotency_key="key-well")
    call = w.calls[-1]
    w.calls[-1] = replace(call, asked=replace(call.asked, idempotency_key="key-well"))


KEYS: Sequence[Plant] = (
    two_under_one_key,
    two_though_one_answer_never_came,
    key_freed_too_early,
    one_session_for_two_keys,
    made_twice,
    two_invocations_of_one_key,
)


def one_session_too_many(w: Written) -> None:
    for number in range(3):
        w.spawn(f"more-{number}")


def one_child_too_many(w: Written) -> None:
    w.settle("unheard", "unheard")
    w.settle("twig", "twig")
    w.spawn("twig-1", "right")
    w.spawn("twig-2", "right")
    w.settle("root-2", "root-2")
    w.spawn("twig-3", "right")


def too_deep(w: Written) -> None:
    w.settle("unheard", "unheard")
    w.spawn("deep-2", "twig")
    w.change(w.find("session.spawn", "deep-2"), depth=4)


def a_tree_for_ever(w: Written) -> None:
    for number in range(5):
        w.spawn(f"again-{number}", "root-2")
        w.settle(f"again-{number}", f"again-{number}")


def an_expired_one_is_counted_until_its_time(w: Written) -> None:
    """The place of one whose time was not over was given away."""
    w.spawn("brief", ttl=1_000)
    w.settle("unheard", "unheard")
    for name in ("a", "b"):
        w.spawn(name)


def a_limit_that_was_not_in_force(w: Written) -> None:
    w.sessions["twig"] = replace(w.sessions["twig"], limits=json.dumps(LIMITS | {"max_children": 30}))


def admitted_after_the_limit_was_lowered(w: Written) -> None:
    w.event("zone.change", ZONE, name=ZONE, quotas={"max_sessions": 3, "max_children": 3})
    w.spawn("late")
    w.sessions["late"] = replace(w.sessions["late"], limits=json.dumps(LIMITS | {"max_sessions": 3}))


BOUNDS: Sequence[Plant] = (
    one_session_too_many,
    one_child_too_many,
    too_deep,
    a_tree_for_ever,
    an_expired_one_is_counted_until_its_time,
    a_limit_that_was_not_in_force,
    admitted_after_the_limit_was_lowered,
)


def begun_while_another_ran(w: Written) -> None:
    w.remove(w.find("invocation.retried", "silent"))


def begun_after_its_end(w: Written) -> None:
    w.insert(len(w.events), replace(w.events[w.find("invocation.started", "back")], data='{"attempt": 2}'))
    w.insert(len(w.events), replace(w.events[w.find("invocation.failed", "back")], data='{"attempt": 2}'))


def attempts_skipped(w: Written) -> None:
    w.change(w.find("invocation.started", "hopeless", 1), attempt=3)
    w.change(w.find("invocation.dead", "hopeless"), attempt=3)
    for i, call in enumerate(w.calls):
        if call.op == "claim" and call.said.items[0].attempt_token == "hopeless-2-w1":
            lease = replace(call.said.items[0], attempt=3)
            w.calls[i] = replace(call, answer=replace(call.said, items=[lease]))


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
    call = next(call for call in w.calls if call.said.id == "twig")
    w.calls[w.calls.index(call)] = replace(call, asked=replace(call.asked, parent_id="right"))


def an_invocation_lost(w: Written) -> None:
    w.call("invoke", 201, {"service_id": "svc", "idempotency_key": "x"}, {"id": "gone", "status": "pending"})


def an_end_lost(w: Written) -> None:
    w.call("terminate", 204, {"id": "twig"})


def a_suspension_lost(w: Written) -> None:
    w.call("suspend", 200, {"id": "left"}, {"suspended": 2})


def a_delegation_lost(w: Written) -> None:
    w.call("delegate", 201, {"source_session_id": "right"}, {"id": "gone-edge"})


def a_revocation_lost(w: Written) -> None:
    w.delegate("edge-3", "right", "twig")
    w.call("revoke", 200, {"id": "edge-3"}, {"revoked_edges": 1})


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
    w.calls[-1] = replace(w.calls[-1], status=404, answer=None)


REFUSED: Sequence[Plant] = (a_refused_invocation_made,)


def spawned_under_the_dead(w: Written) -> None:
    w.settle("unheard", "unheard")
    w.born("late", "leaf")
    w.settle("late", "late")


def spawned_under_the_stamped(w: Written) -> None:
    """After the stamp, before the leaf's own end."""
    late = w.born("late", "leaf")
    w.settle("late", "late")
    ended, born = w.remove(len(w.events) - 1), w.remove(len(w.events) - 1)
    assert born.id == late.id
    index = w.find("cascade.begin", "root") + 1
    for event in (ended, born):
        w.insert(index, replace(event, at=w.events[index - 1].at))
    at = w.events[index].at
    w.sessions["late"] = replace(w.sessions["late"], terminated_at=at, spawned_at=at)


def spawned_under_one_past_its_time(w: Written) -> None:
    w.spawn("brief", ttl=5)
    w.now += 100
    w.settle("unheard", "unheard")
    w.born("late", "brief")
    w.settle("late", "late")
    w.settle("brief", "brief")


def invoked_from_the_dead(w: Written) -> None:
    w.invoke("ghost", source="left")
    w.move("ghost", "canceled", "canceled", 0)


def begun_for_the_dead(w: Written) -> None:
    w.invoke("ghost", source="twig")
    w.settle("twig", "twig")
    w.complete(w.claim("ghost", 1, "w1"), "w1")


def delegated_by_the_dead(w: Written) -> None:
    w.delegate("ghost", "left", "right")
    w.revoke("ghost")


def woken_after_its_end(w: Written) -> None:
    index = w.find("session.terminate", "left")
    resume = w.event("session.resume", "left", "active", "active", cause="root")
    w.remove(len(w.events) - 1)
    w.insert(index, replace(resume, at=w.events[index].at))


def spoken_for_the_dead(w: Written) -> None:
    call = next(call for call in w.calls if call.said.id == "twig")
    w.calls[w.calls.index(call)] = replace(call, session="leaf")


def begun_for_one_asleep(w: Written) -> None:
    w.invoke("early", source="twig")
    w.told_to("suspend", "twig")
    w.complete(w.claim("early", 1, "w1"), "w1")


def spawned_under_one_asleep(w: Written) -> None:
    w.settle("unheard", "unheard")
    w.told_to("suspend", "twig")
    w.born("late", "twig")


ENDINGS: Sequence[Plant] = (
    spawned_under_the_dead,
    spawned_under_the_stamped,
    spawned_under_one_past_its_time,
    invoked_from_the_dead,
    begun_for_the_dead,
    delegated_by_the_dead,
    woken_after_its_end,
    spoken_for_the_dead,
    spawned_under_one_asleep,
    begun_for_one_asleep,
)


def before_its_time(w: Written) -> None:
    """Asked for when a later one had been answered."""
    index = next(i for i, call in enumerate(w.calls) if call.said.id == "root-2" and call.created)
    w.calls[index] = replace(w.calls[index], started=w.now + 100.0, ended=w.now + 110.0)


def after_an_end_that_came_later(w: Written) -> None:
    """The end was acknowledged before the spawn was asked for, and stands behind it."""
    w.settle("unheard", "unheard")
    w.call("terminate", 204, {"id": "unheard"})
    index = next(i for i, call in enumerate(w.calls) if call.said.id == "twig")
    w.calls[index] = replace(w.calls[index], started=w.now + 100.0, ended=w.now + 110.0)


ORDER: Sequence[Plant] = (before_its_time, after_an_end_that_came_later)


def a_row_without_an_event(w: Written) -> None:
    w.sessions["own"] = SessionRow(
        ZONE, "own", APP, None, "own", 0, "active", "{}", START, w.now + 10**6, None
    )


def an_event_without_a_row(w: Written) -> None:
    del w.sessions["twig"]


def a_row_of_another_state(w: Written) -> None:
    w.sessions["twig"] = replace(w.sessions["twig"], status="suspended")


def a_row_that_goes_on(w: Written) -> None:
    w.sessions["short"] = replace(w.sessions["short"], status="active", terminated_at=None, expires_at=w.now)


def a_key_for_nobody(w: Written) -> None:
    w.keys["k7"] = KeyRow(ZONE, APP, "k7", "never")


def an_invocation_in_another_state(w: Written) -> None:
    w.invocations["back"] = replace(w.invocations["back"], status="succeeded")


def an_invocation_gone(w: Written) -> None:
    del w.invocations["back"]


def an_invocation_half_made(w: Written) -> None:
    w.invocations["half"] = replace(w.invocations["back"], id="half", idempotency_key="half")


def an_edge_still_active(w: Written) -> None:
    w.edges["edge-3"] = replace(
        w.edges["edge"], id="edge-3", source_session_id="right", target_session_id="twig"
    )
    w.event("delegation.create", "edge-3", None, "active")


def an_edge_gone(w: Written) -> None:
    del w.edges["edge"]


AGREEMENT: Sequence[Plant] = (
    a_row_without_an_event,
    an_event_without_a_row,
    a_row_of_another_state,
    a_row_that_goes_on,
    a_key_for_nobody,
    an_invocation_in_another_state,
    an_invocation_gone,
    an_invocation_half_made,
    an_edge_still_active,
    an_edge_gone,
)


def a_cascade_half_way(w: Written) -> None:
    w.cascades.append(CascadeRow(ZONE, "c-root", "right", 3, None))


def left_running(w: Written) -> None:
    w.invoke("left-over", source="twig")
    w.settle("twig", "twig")


def left_active(w: Written) -> None:
    w.delegate("edge-3", "right", "twig")
    w.settle("twig", "twig")


def never_swept(w: Written) -> None:
    w.spawn("brief", ttl=5)
    w.now += 10 * 60_000


REST: Sequence[Plant] = (a_cascade_half_way, left_running, left_active, never_swept)

PLANTED = {
    "story": STORY,
    "one-key": KEYS,
    "limits": BOUNDS,
    "one-holder": HOLDERS,
    "stale": STALE,
    "acknowledged": LOST,
    "refused": REFUSED,
    "after-the-end": ENDINGS,
    "order": ORDER,
    "agreement": AGREEMENT,
    "rest": REST,
}
