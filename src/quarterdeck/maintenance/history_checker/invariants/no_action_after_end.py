"""An ended session or agent does nothing.

A session ends at its own termination event, at the start of a cascade that includes it, or at its expiry. After that it
has no new children, services, delegations or invocations, none of its invocations starts, it is neither suspended nor
resumed, and no call with its credential creates anything. A suspended session does nothing that suspension forbids. An
agent that is stale or terminated starts no task.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.core.ids import Ref
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.invariants.no_lost_acks import CREATE_EVENTS
from quarterdeck.maintenance.history_checker.model import EventData, Evidence, RecordedCall, Violation
from quarterdeck.maintenance.history_checker.nouns import TASK
from quarterdeck.maintenance.history_checker.session_replay import ReplayedSession, SessionReplay, readable_events

NAME = "after-the-end"


def check(evidence: Evidence) -> Iterator[Violation]:
    sessions, calls_by_event = SessionReplay(evidence), _calls_for_sessions(evidence)
    lost_positions: dict[Ref, int] = {}
    for event, data in readable_events(evidence):
        for session_id, action in _acting_sessions(event, data):
            if session := sessions.get(event.zone_id, session_id):
                yield from _check_session(event, session, action)
        if call := calls_by_event.pop((event.type, event.zone_id, event.subject), None):
            yield from _check_caller(event, call, sessions.get(call.zone, call.session))
        yield from _check_agent(event, data, lost_positions)
        sessions.apply(event, data)


def _calls_for_sessions(evidence: Evidence) -> dict[tuple[str, str, str], RecordedCall]:
    """The calls with a session's credential that created an object, keyed by the creation event."""
    return {
        (CREATE_EVENTS[call.op], call.zone, call.response.id): call
        for call in evidence.history
        if call.session and call.has_created and call.op in CREATE_EVENTS and call.response.id
    }


def _acting_sessions(event: Event, data: EventData) -> Iterator[tuple[str | None, str]]:
    """The sessions that must be live for this event, and what each of them does."""
    match event.type:
        case "session.spawn":
            yield data.parent_id, "was the parent of a spawn"
        case "session.suspend" | "session.resume":
            yield event.subject, f"had the event {event.type}"
        case "delegation.create":
            yield data.source_session_id, "delegated"
            yield data.target_session_id, "was delegated to"
        case "service.register":
            # The session that owns the service. None if an application owns it.
            yield data.agent_id, "registered a service"
        case "invocation.created":
            yield data.source_session_id, "invoked"
            yield data.target_session_id, "was invoked"
        case "invocation.started":
            yield data.source_session_id, "had an invocation started"
            yield data.target_session_id, "had to run an invocation"


ALLOWED_WHILE_SUSPENDED = frozenset({"had the event session.suspend", "had the event session.resume"})
"""The actions of `_acting_sessions` that are allowed for a suspended session."""


def _check_session(event: Event, session: ReplayedSession, action: str) -> Iterator[Violation]:
    if session.is_live(event.at):
        if session.is_suspended and action not in ALLOWED_WHILE_SUSPENDED:
            detail = f"session {session.id} {action} ({event.subject}) while it was suspended"
            yield Violation(NAME, event.zone_id, session.id, detail, event.pos)
        return
    detail = f"session {session.id} {action} ({event.subject}) after {_end_text(session)}"
    yield Violation(NAME, event.zone_id, session.id, detail, event.pos)


def _check_caller(event: Event, call: RecordedCall, session: ReplayedSession | None) -> Iterator[Violation]:
    if session is not None and not session.is_live(event.at):
        detail = f"a {call.op} with the credential of session {session.id} ({event.subject}) succeeded after "
        detail += _end_text(session)
        yield Violation(NAME, event.zone_id, session.id, detail, event.pos, call.location)


def _end_text(session: ReplayedSession) -> str:
    return "its expiry" if session.ended_pos is None else f"its end at {session.ended_pos}"


LOST_STATES = frozenset({"ERROR", "TERMINATED"})
"""The states of stale and terminated agents."""


def _check_agent(event: Event, data: EventData, lost_positions: dict[Ref, int]) -> Iterator[Violation]:
    """Check the agent that starts an attempt. Keeps the positions at which agents became stale or terminated."""
    if event.type.startswith("agent.") and event.to_state is not None:
        lost_positions.pop((event.zone_id, event.subject), None)
        if event.to_state in LOST_STATES:
            lost_positions[event.zone_id, event.subject] = event.pos
    elif TASK.starts_attempt(event):
        agent_id = data.task_agent_id
        pos = lost_positions.get((event.zone_id, agent_id or ""))
        if pos is not None:
            detail = f"agent {agent_id} started {event.subject}, but had been stale or terminated since {pos}"
            yield Violation(NAME, event.zone_id, event.subject, detail, event.pos)
