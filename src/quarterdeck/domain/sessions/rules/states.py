"""Session states, and the state of a session at a given time."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Forbidden, NotFound
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.core.views import view_of
from quarterdeck.domain.access.rules import is_live
from quarterdeck.domain.sessions.model import Session, SessionView, State, Verb

SESSION_STATES: StateMachine[State, Verb] = StateMachine(
    "session",
    State,
    State.ACTIVE,
    {
        Verb.SUSPEND: {State.ACTIVE: State.SUSPENDED},
        Verb.RESUME: {State.SUSPENDED: State.ACTIVE},
        Verb.TERMINATE: {State.ACTIVE: State.TERMINATED, State.SUSPENDED: State.TERMINATED},
    },
)
TTL_EXPIRED = "ttl_expired"
"""Termination reason of an expired session."""


def effective_session(session: Session, now: Millis) -> Session:
    """The session as callers see it now.

    A session that has expired or is marked by a cascade is shown as terminated even before its row is updated.
    """
    if session.status is State.TERMINATED or is_live(session, now):
        return session
    if session.terminated_at is not None:
        return msgspec.structs.replace(session, status=State.TERMINATED)
    return msgspec.structs.replace(
        session, status=State.TERMINATED, terminated_at=session.expires_at, termination_reason=TTL_EXPIRED
    )


# -- errors ------------------------------------------------------------------------------------------------------


def session_not_found(session_id: str) -> NotFound:
    return NotFound("agent_not_found", f"Session {session_id!r} does not exist in this zone.")


def ownership_required(application_id: str) -> Forbidden:
    return Forbidden("application_ownership_required", f"This token cannot act for application {application_id!r}.")


# -- view --------------------------------------------------------------------------------------------------------

view = view_of(Session, SessionView, agent_session_id="id")
