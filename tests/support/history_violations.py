"""Violations of every invariant. Each function plants one into a valid history by the smallest change. Those about
calls are in `call_violations`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from quarterdeck.maintenance.history_checker.model import CascadeRow, KeyRow, SessionRow
from tests.support.call_violations import (
    LOST_ACKNOWLEDGEMENTS,
    MULTIPLE_HOLDERS,
    ORDER_VIOLATIONS,
    REFUSALS_WITH_EFFECT,
    STALE_COMPLETIONS,
)
from tests.support.history_builder import APP, LIMITS, START, ZONE, HistoryBuilder, PlantViolation

replace = msgspec.structs.replace


def event_logged_twice(history: HistoryBuilder) -> None:
    history.add_event("session.terminate", "short", "terminated", "terminated", cause="short")


def end_without_spawn(history: HistoryBuilder) -> None:
    history.add_event("session.terminate", "unknown", "active", "terminated", cause="unknown")


def parent_ended_before_child(history: HistoryBuilder) -> None:
    """Only in the log; the rows are the same."""
    leaf = history.remove_event(history.find_event("session.terminate", "leaf"))
    history.insert_event(history.find_event("session.terminate", "left") + 1, leaf)


def position_gap(history: HistoryBuilder) -> None:
    history.events[-1] = replace(history.events[-1], pos=len(history.events) + 1)


def wrong_from_state(history: HistoryBuilder) -> None:
    history.change_event(history.find_event("session.resume", "left"), from_state="active")


def unreadable_event_data(history: HistoryBuilder) -> None:
    history.insert_event(
        history.find_event("invocation.cancel_requested", "stopped"),
        replace(history.events[0], type="zone.note", data="{"),
    )


EVENT_SEQUENCE: Sequence[PlantViolation] = (
    event_logged_twice,
    end_without_spawn,
    parent_ended_before_child,
    position_gap,
    wrong_from_state,
    unreadable_event_data,
)


def two_sessions_for_one_key(history: HistoryBuilder) -> None:
    history.spawn("double", key="k2")


def two_sessions_though_one_response_was_lost(history: HistoryBuilder) -> None:
    """Only the row of the key names the second session."""
    history.end_session("unanswered")
    history.add_session("double")
    history.keys["k2"] = KeyRow(ZONE, APP, "k2", "double")


def key_freed_before_expiry(history: HistoryBuilder) -> None:
    """The second spawn is one millisecond before the first session expires."""
    at = history.sessions["short"].expires_at - 1
    index = history.find_event("session.spawn", "short-2")
    for i in range(history.find_event("session.spawn", "short") + 1, index + 1):
        history.events[i] = replace(history.events[i], at=min(history.events[i].at, at))


def one_session_for_two_keys(history: HistoryBuilder) -> None:
    history.add_call(
        "spawn", 200, {"application_id": APP, "idempotency_key": "k8"}, {"id": "right", "status": "active"}
    )


def created_twice(history: HistoryBuilder) -> None:
    history.add_call(
        "spawn", 201, {"application_id": APP, "idempotency_key": "k2"}, {"id": "right", "status": "active"}
    )


def two_invocations_for_one_key(history: HistoryBuilder) -> None:
    history.invoke("again")
    history.invocations["again"] = replace(history.invocations["again"], idempotency_key="key-well")
    call = history.calls[-1]
    history.calls[-1] = replace(call, request=replace(call.request, idempotency_key="key-well"))


UNIQUE_KEYS: Sequence[PlantViolation] = (
    two_sessions_for_one_key,
    two_sessions_though_one_response_was_lost,
    key_freed_before_expiry,
    one_session_for_two_keys,
    created_twice,
    two_invocations_for_one_key,
)


def one_session_too_many(history: HistoryBuilder) -> None:
    for number in range(3):
        history.spawn(f"more-{number}")


def one_child_too_many(history: HistoryBuilder) -> None:
    history.end_session("unanswered")
    history.terminate_session("twig", "twig")
    history.spawn("twig-1", "right")
    history.spawn("twig-2", "right")
    history.terminate_session("root-2", "root-2")
    history.spawn("twig-3", "right")


def too_deep(history: HistoryBuilder) -> None:
    history.end_session("unanswered")
    history.spawn("deep-2", "twig")
    history.change_event(history.find_event("session.spawn", "deep-2"), depth=4)


def too_many_spawns_in_a_tree(history: HistoryBuilder) -> None:
    for number in range(5):
        history.spawn(f"again-{number}", "root-2")
        history.terminate_session(f"again-{number}", f"again-{number}")


def slot_freed_before_expiry(history: HistoryBuilder) -> None:
    """The slot of a session that had not expired was given to another."""
    history.spawn("brief", ttl=1_000)
    history.end_session("unanswered")
    for name in ("a", "b"):
        history.spawn(name)


def limit_not_in_force(history: HistoryBuilder) -> None:
    history.sessions["twig"] = replace(history.sessions["twig"], limits=json.dumps(LIMITS | {"max_children": 30}))


def admitted_after_the_limit_was_lowered(history: HistoryBuilder) -> None:
    history.add_event("zone.change", ZONE, name=ZONE, quotas={"max_sessions": 3, "max_children": 3})
    history.spawn("late")
    history.sessions["late"] = replace(history.sessions["late"], limits=json.dumps(LIMITS | {"max_sessions": 3}))


LIMIT_VIOLATIONS: Sequence[PlantViolation] = (
    one_session_too_many,
    one_child_too_many,
    too_deep,
    too_many_spawns_in_a_tree,
    slot_freed_before_expiry,
    limit_not_in_force,
    admitted_after_the_limit_was_lowered,
)


def spawned_under_ended_parent(history: HistoryBuilder) -> None:
    history.end_session("unanswered")
    history.add_session("late", "leaf")
    history.terminate_session("late", "late")


def spawned_under_parent_in_cascade(history: HistoryBuilder) -> None:
    """After the cascade marked the parent, before the parent's own end."""
    late = history.add_session("late", "leaf")
    history.terminate_session("late", "late")
    ended, spawned = history.remove_event(len(history.events) - 1), history.remove_event(len(history.events) - 1)
    assert spawned.id == late.id
    index = history.find_event("cascade.begin", "root") + 1
    for event in (ended, spawned):
        history.insert_event(index, replace(event, at=history.events[index - 1].at))
    at = history.events[index].at
    history.sessions["late"] = replace(history.sessions["late"], terminated_at=at, spawned_at=at)


def spawned_under_expired_parent(history: HistoryBuilder) -> None:
    history.spawn("brief", ttl=5)
    history.clock += 100
    history.end_session("unanswered")
    history.add_session("late", "brief")
    history.terminate_session("late", "late")
    history.terminate_session("brief", "brief")


def invoked_from_ended_session(history: HistoryBuilder) -> None:
    history.invoke("ghost", source="left")
    history.change_state("ghost", "canceled", "canceled", 0)


def started_for_ended_session(history: HistoryBuilder) -> None:
    history.invoke("ghost", source="twig")
    history.terminate_session("twig", "twig")
    history.complete(history.claim("ghost", 1, "w1"), "w1")


def delegated_by_ended_session(history: HistoryBuilder) -> None:
    history.delegate("ghost", "left", "right")
    history.revoke("ghost")


def delegated_to_suspended_session(history: HistoryBuilder) -> None:
    history.change_suspension("suspend", "twig")
    history.delegate("ghost", "right", "twig")


def registered_for_ended_session(history: HistoryBuilder) -> None:
    history.add_event("service.register", "svc-2", None, "starting", application_id=APP, agent_id="left")


def registered_for_suspended_session(history: HistoryBuilder) -> None:
    history.change_suspension("suspend", "twig")
    history.add_event("service.register", "svc-2", None, "starting", application_id=APP, agent_id="twig")


def resumed_after_end(history: HistoryBuilder) -> None:
    index = history.find_event("session.terminate", "left")
    resume = history.add_event("session.resume", "left", "active", "active", cause="root")
    history.remove_event(len(history.events) - 1)
    history.insert_event(index, replace(resume, at=history.events[index].at))


def call_by_ended_session(history: HistoryBuilder) -> None:
    call = next(call for call in history.calls if call.response.id == "twig")
    history.calls[history.calls.index(call)] = replace(call, session="leaf")


def started_for_suspended_session(history: HistoryBuilder) -> None:
    history.invoke("early", source="twig")
    history.change_suspension("suspend", "twig")
    history.complete(history.claim("early", 1, "w1"), "w1")


def spawned_under_suspended_parent(history: HistoryBuilder) -> None:
    history.end_session("unanswered")
    history.change_suspension("suspend", "twig")
    history.add_session("late", "twig")


ACTIONS_AFTER_END: Sequence[PlantViolation] = (
    spawned_under_ended_parent,
    spawned_under_parent_in_cascade,
    spawned_under_expired_parent,
    invoked_from_ended_session,
    started_for_ended_session,
    delegated_by_ended_session,
    delegated_to_suspended_session,
    registered_for_ended_session,
    registered_for_suspended_session,
    resumed_after_end,
    call_by_ended_session,
    spawned_under_suspended_parent,
    started_for_suspended_session,
)


def derived_from_revoked_edge(history: HistoryBuilder) -> None:
    history.revoke("edge-3")
    history.delegate("edge-5", "short-2", "right", "edge-3")


def derived_from_foreign_edge(history: HistoryBuilder) -> None:
    history.delegate("edge-5", "unanswered", "twig", "edge-3")


def derived_with_more_scopes(history: HistoryBuilder) -> None:
    history.delegate("edge-5", "unanswered", "twig", "edge-4", "read", "write")


def derived_with_later_expiry(history: HistoryBuilder) -> None:
    history.edges["edge-3"] = replace(history.edges["edge-3"], expires_at=history.clock + 10**6)


def delegation_cycle(history: HistoryBuilder) -> None:
    history.delegate("edge-5", "unanswered", "right", "edge-4")


AUTHORITY_VIOLATIONS: Sequence[PlantViolation] = (
    derived_from_revoked_edge,
    derived_from_foreign_edge,
    derived_with_more_scopes,
    derived_with_later_expiry,
    delegation_cycle,
)


def row_without_event(history: HistoryBuilder) -> None:
    history.sessions["own"] = SessionRow(
        ZONE, "own", APP, None, "own", 0, "active", "{}", START, history.clock + 10**6, None
    )


def event_without_row(history: HistoryBuilder) -> None:
    del history.sessions["twig"]


def row_in_other_state(history: HistoryBuilder) -> None:
    history.sessions["twig"] = replace(history.sessions["twig"], status="suspended")


def row_still_active(history: HistoryBuilder) -> None:
    history.sessions["short"] = replace(
        history.sessions["short"], status="active", terminated_at=None, expires_at=history.clock
    )


def key_without_session(history: HistoryBuilder) -> None:
    history.keys["k7"] = KeyRow(ZONE, APP, "k7", "never")


def invocation_row_in_other_state(history: HistoryBuilder) -> None:
    history.invocations["back"] = replace(history.invocations["back"], status="succeeded")


def invocation_row_missing(history: HistoryBuilder) -> None:
    del history.invocations["back"]


def invocation_row_without_event(history: HistoryBuilder) -> None:
    history.invocations["half"] = replace(history.invocations["back"], id="half", idempotency_key="half")


def edge_without_matching_row(history: HistoryBuilder) -> None:
    history.edges["edge-9"] = replace(
        history.edges["edge"], id="edge-9", source_session_id="right", target_session_id="twig"
    )
    history.add_event(
        "delegation.create", "edge-9", None, "active", source_session_id="right", target_session_id="twig"
    )


def edge_row_missing(history: HistoryBuilder) -> None:
    del history.edges["edge"]


ROW_MISMATCHES: Sequence[PlantViolation] = (
    row_without_event,
    event_without_row,
    row_in_other_state,
    row_still_active,
    key_without_session,
    invocation_row_in_other_state,
    invocation_row_missing,
    invocation_row_without_event,
    edge_without_matching_row,
    edge_row_missing,
)


def unfinished_cascade(history: HistoryBuilder) -> None:
    history.cascades.append(CascadeRow(ZONE, "c-root", "right", 3, None))


def invocation_left_open(history: HistoryBuilder) -> None:
    history.invoke("left-over", source="twig")
    history.terminate_session("twig", "twig")


def edge_left_active(history: HistoryBuilder) -> None:
    history.delegate("edge-9", "right", "twig")
    history.terminate_session("twig", "twig")


def expired_session_not_swept(history: HistoryBuilder) -> None:
    history.spawn("brief", ttl=5)
    history.clock += 10 * 60_000


def invocation_held_past_deadline(history: HistoryBuilder) -> None:
    history.invoke("slow")
    history.claim("slow", 1, "w1")
    history.invocations["slow"] = replace(
        history.invocations["slow"], deadline_at=history.clock, lease_expires_at=2**60
    )
    history.clock += 10 * 60_000


def invocation_held_past_lease(history: HistoryBuilder) -> None:
    history.invoke("silent-2")
    history.claim("silent-2", 1, "w1")
    history.invocations["silent-2"] = replace(
        history.invocations["silent-2"], deadline_at=2**60, lease_expires_at=history.clock
    )
    history.clock += 10 * 60_000


def expired_edge_not_marked(history: HistoryBuilder) -> None:
    history.delegate("edge-9", "right", "twig")
    history.edges["edge-9"] = replace(history.edges["edge-9"], expires_at=history.clock + 1_000)
    history.clock += 10 * 60_000


UNFINISHED_WORK: Sequence[PlantViolation] = (
    unfinished_cascade,
    invocation_left_open,
    edge_left_active,
    expired_session_not_swept,
    invocation_held_past_deadline,
    invocation_held_past_lease,
    expired_edge_not_marked,
)

VIOLATIONS = {
    "story": EVENT_SEQUENCE,
    "one-key": UNIQUE_KEYS,
    "limits": LIMIT_VIOLATIONS,
    "one-holder": MULTIPLE_HOLDERS,
    "stale": STALE_COMPLETIONS,
    "acknowledged": LOST_ACKNOWLEDGEMENTS,
    "refused": REFUSALS_WITH_EFFECT,
    "after-the-end": ACTIONS_AFTER_END,
    "narrowing": AUTHORITY_VIOLATIONS,
    "order": ORDER_VIOLATIONS,
    "agreement": ROW_MISMATCHES,
    "rest": UNFINISHED_WORK,
}
