"""Breaches of every promise, each planted into a true history by the smallest change that makes it one. Those about
calls stand beside this file."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from quarterdeck.maintenance.history_checker.model import CascadeRow, KeyRow, SessionRow
from tests.support.histories import APP, LIMITS, START, ZONE, Plant, Written
from tests.support.planted_calls import HOLDERS, LOST, ORDER, REFUSED, STALE

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
    w.insert(w.find("invocation.cancel_requested", "stopped"), replace(w.events[0], type="zone.note", data="{"))


STORY: Sequence[Plant] = (told_twice, ended_unborn, parent_first, gap, states_jump, unreadable)


def two_under_one_key(w: Written) -> None:
    w.spawn("double", key="k2")


def two_though_one_answer_never_came(w: Written) -> None:
    """Only the table of keys knows of the second."""
    w.end("unheard")
    w.born("double")
    w.keys["k2"] = KeyRow(ZONE, APP, "k2", "double")


def key_freed_too_early(w: Written) -> None:
    """Spawned again a moment before the first's time ran out."""
    at = w.sessions["short"].expires_at - 1
    index = w.find("session.spawn", "short-2")
    for i in range(w.find("session.spawn", "short") + 1, index + 1):
        w.events[i] = replace(w.events[i], at=min(w.events[i].at, at))


def one_session_for_two_keys(w: Written) -> None:
    w.call("spawn", 200, {"application_id": APP, "idempotency_key": "k8"}, {"id": "right", "status": "active"})


def made_twice(w: Written) -> None:
    w.call("spawn", 201, {"application_id": APP, "idempotency_key": "k2"}, {"id": "right", "status": "active"})


def two_invocations_of_one_key(w: Written) -> None:
    w.invoke("again")
    w.invocations["again"] = replace(w.invocations["again"], idempotency_key="key-well")
    call = w.calls[-1]
    w.calls[-1] = replace(call, request=replace(call.request, idempotency_key="key-well"))


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
    w.end("unheard")
    w.settle("twig", "twig")
    w.spawn("twig-1", "right")
    w.spawn("twig-2", "right")
    w.settle("root-2", "root-2")
    w.spawn("twig-3", "right")


def too_deep(w: Written) -> None:
    w.end("unheard")
    w.spawn("deep-2", "twig")
    w.change(w.find("session.spawn", "deep-2"), depth=4)


def a_tree_for_ever(w: Written) -> None:
    for number in range(5):
        w.spawn(f"again-{number}", "root-2")
        w.settle(f"again-{number}", f"again-{number}")


def an_expired_one_is_counted_until_its_time(w: Written) -> None:
    """The place of one whose time was not over was given away."""
    w.spawn("brief", ttl=1_000)
    w.end("unheard")
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


def spawned_under_the_dead(w: Written) -> None:
    w.end("unheard")
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
    w.end("unheard")
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


def delegated_to_one_asleep(w: Written) -> None:
    w.told_to("suspend", "twig")
    w.delegate("ghost", "right", "twig")


def registered_for_the_dead(w: Written) -> None:
    w.event("service.register", "svc-2", None, "starting", application_id=APP, agent_id="left")


def registered_for_one_asleep(w: Written) -> None:
    w.told_to("suspend", "twig")
    w.event("service.register", "svc-2", None, "starting", application_id=APP, agent_id="twig")


def woken_after_its_end(w: Written) -> None:
    index = w.find("session.terminate", "left")
    resume = w.event("session.resume", "left", "active", "active", cause="root")
    w.remove(len(w.events) - 1)
    w.insert(index, replace(resume, at=w.events[index].at))


def spoken_for_the_dead(w: Written) -> None:
    call = next(call for call in w.calls if call.response.id == "twig")
    w.calls[w.calls.index(call)] = replace(call, session="leaf")


def begun_for_one_asleep(w: Written) -> None:
    w.invoke("early", source="twig")
    w.told_to("suspend", "twig")
    w.complete(w.claim("early", 1, "w1"), "w1")


def spawned_under_one_asleep(w: Written) -> None:
    w.end("unheard")
    w.told_to("suspend", "twig")
    w.born("late", "twig")


ENDINGS: Sequence[Plant] = (
    spawned_under_the_dead,
    spawned_under_the_stamped,
    spawned_under_one_past_its_time,
    invoked_from_the_dead,
    begun_for_the_dead,
    delegated_by_the_dead,
    delegated_to_one_asleep,
    registered_for_the_dead,
    registered_for_one_asleep,
    woken_after_its_end,
    spoken_for_the_dead,
    spawned_under_one_asleep,
    begun_for_one_asleep,
)


def lent_out_of_what_was_revoked(w: Written) -> None:
    w.revoke("edge-3")
    w.delegate("edge-5", "short-2", "right", "edge-3")


def lent_out_of_anothers(w: Written) -> None:
    w.delegate("edge-5", "unheard", "twig", "edge-3")


def lent_more_than_it_had(w: Written) -> None:
    w.delegate("edge-5", "unheard", "twig", "edge-4", "read", "write")


def lent_for_longer(w: Written) -> None:
    w.edges["edge-3"] = replace(w.edges["edge-3"], expires_at=w.now + 10**6)


def in_a_circle(w: Written) -> None:
    w.delegate("edge-5", "unheard", "right", "edge-4")


NARROWING: Sequence[Plant] = (
    lent_out_of_what_was_revoked,
    lent_out_of_anothers,
    lent_more_than_it_had,
    lent_for_longer,
    in_a_circle,
)


def a_row_without_an_event(w: Written) -> None:
    w.sessions["own"] = SessionRow(ZONE, "own", APP, None, "own", 0, "active", "{}", START, w.now + 10**6, None)


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
    w.edges["edge-9"] = replace(w.edges["edge"], id="edge-9", source_session_id="right", target_session_id="twig")
    w.event("delegation.create", "edge-9", None, "active", source_session_id="right", target_session_id="twig")


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
    w.delegate("edge-9", "right", "twig")
    w.settle("twig", "twig")


def never_swept(w: Written) -> None:
    w.spawn("brief", ttl=5)
    w.now += 10 * 60_000


def held_past_its_deadline(w: Written) -> None:
    w.invoke("slow")
    w.claim("slow", 1, "w1")
    w.invocations["slow"] = replace(w.invocations["slow"], deadline_at=w.now, lease_expires_at=2**60)
    w.now += 10 * 60_000


def held_past_its_lease(w: Written) -> None:
    w.invoke("silent-2")
    w.claim("silent-2", 1, "w1")
    w.invocations["silent-2"] = replace(w.invocations["silent-2"], deadline_at=2**60, lease_expires_at=w.now)
    w.now += 10 * 60_000


def never_marked(w: Written) -> None:
    w.delegate("edge-9", "right", "twig")
    w.edges["edge-9"] = replace(w.edges["edge-9"], expires_at=w.now + 1_000)
    w.now += 10 * 60_000


REST: Sequence[Plant] = (
    a_cascade_half_way,
    left_running,
    left_active,
    never_swept,
    held_past_its_deadline,
    held_past_its_lease,
    never_marked,
)

PLANTED = {
    "story": STORY,
    "one-key": KEYS,
    "limits": BOUNDS,
    "one-holder": HOLDERS,
    "stale": STALE,
    "acknowledged": LOST,
    "refused": REFUSED,
    "after-the-end": ENDINGS,
    "narrowing": NARROWING,
    "order": ORDER,
    "agreement": AGREEMENT,
    "rest": REST,
}
