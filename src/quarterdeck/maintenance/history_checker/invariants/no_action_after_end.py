"""After its end nobody acted again.

A session has ended from the position of its own event on, or of the cascade that stamped it, or from the instant its
time ran out. After that it parents nothing, registers nothing, neither gives nor is given authority, nothing is invoked
from it or on it and nothing of its begins, it neither falls asleep nor wakes; and no call succeeds whose credential
spoke for it. The same is asked of those who sleep, for what a suspended session may not do; and of agents that are lost
or have ended, that they begin no task.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.invariants.no_lost_acks import CREATE_EVENTS
from quarterdeck.maintenance.history_checker.model import EventData, Evidence, RecordedCall, Ref, Violation
from quarterdeck.maintenance.history_checker.replay import ReplayedSession, SessionReplay, readable_events
from quarterdeck.maintenance.history_checker.task_model import decode_task_event_data
from quarterdeck.maintenance.history_checker.task_replay import starts_attempt

NAME = "after-the-end"


def check(evidence: Evidence) -> Iterator[Violation]:
    sessions, calls_by_event = SessionReplay(evidence), _calls_for_sessions(evidence)
    for event, data in readable_events(evidence):
        for session_id, action in _acting_sessions(event, data):
            if session := sessions.get(event.zone_id, session_id):
                yield from _check_session(event, session, action)
        if call := calls_by_event.pop((event.type, event.zone_id, event.subject), None):
            yield from _check_caller(event, call, sessions.get(call.zone, call.session))
        sessions.apply(event, data)
    yield from _check_tasks(evidence, NAME)


def _calls_for_sessions(evidence: Evidence) -> dict[tuple[str, str, str], RecordedCall]:
    """By the event that it caused: the call that was made for a session. Only what was new was caused by it."""
    return {
        (CREATE_EVENTS[call.op], call.zone, call.response.id): call
        for call in evidence.history
        if call.session and call.has_created and call.op in CREATE_EVENTS and call.response.id
    }


def _acting_sessions(event: Event, data: EventData) -> Iterator[tuple[str | None, str]]:
    """Who must be alive for this event to be, and what it does."""
    match event.type:
        case "session.spawn":
            yield data.parent_id, "was the parent of a spawn"
        case "session.suspend" | "session.resume":
            yield event.subject, f"was told to {event.type.removeprefix('session.')}"
        case "delegation.create":
            yield data.source_session_id, "delegated"
            yield data.target_session_id, "was delegated to"
        case "service.register":
            # Whose it is. One that is its application's alone names nobody, and waits for nobody's end.
            yield data.agent_id, "registered a service"
        case "invocation.created":
            yield data.source_session_id, "invoked"
            yield data.target_session_id, "was invoked"
        case "invocation.started":
            yield data.source_session_id, "had an invocation begun"
            yield data.target_session_id, "was to run an invocation"


ALLOWED_WHILE_SUSPENDED = frozenset({"was told to suspend", "was told to resume"})
"""What may happen to a suspended session; all else is for those who are awake."""


def _check_session(event: Event, session: ReplayedSession, action: str) -> Iterator[Violation]:
    if session.is_live(event.at):
        if session.is_suspended and action not in ALLOWED_WHILE_SUSPENDED:
            detail = f"the session {session.id} {action} ({event.subject}) while it was suspended"
            yield Violation(NAME, event.zone_id, session.id, detail, event.pos)
        return
    detail = f"the session {session.id} {action} ({event.subject}) after {_end_text(session)}"
    yield Violation(NAME, event.zone_id, session.id, detail, event.pos)


def _check_caller(event: Event, call: RecordedCall, session: ReplayedSession | None) -> Iterator[Violation]:
    if session is not None and not session.is_live(event.at):
        detail = f"a {call.op} was made for the session {session.id} ({event.subject}) after {_end_text(session)}"
        yield Violation(NAME, event.zone_id, session.id, detail, event.pos, call.location)


def _end_text(session: ReplayedSession) -> str:
    return "its time had run out" if session.ended_pos is None else f"its end at {session.ended_pos}"


LOST_STATES = frozenset({"ERROR", "TERMINATED"})


def _check_tasks(evidence: Evidence, invariant: str) -> Iterator[Violation]:
    lost_at: dict[Ref, int] = {}
    """Where each of those ended who have."""
    for event in evidence.log:
        if event.type.startswith("agent.") and event.to_state is not None:
            ref = (event.zone_id, event.subject)
            if event.to_state in LOST_STATES:
                lost_at[ref] = event.pos
            else:
                lost_at.pop(ref, None)
        elif starts_attempt(event) and (data := decode_task_event_data(event)) is not None:
            pos = lost_at.get((event.zone_id, data.agent_id or ""))
            if pos is not None:
                detail = f"the agent {data.agent_id} began {event.subject}, and was gone since {pos}"
                yield Violation(invariant, event.zone_id, event.subject, detail, event.pos)
