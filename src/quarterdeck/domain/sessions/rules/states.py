"""Session states, and the state of a session at a given time."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import Millis, iso, iso_or_none
from quarterdeck.core.errors import Forbidden, NotFound
from quarterdeck.core.state_machine import StateMachine
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


def view(session: Session) -> SessionView:
    """Columns that contain JSON are passed through without decoding."""
    return SessionView(
        id=session.id,
        agent_session_id=session.id,
        zone_id=session.zone_id,
        application_id=session.application_id,
        parent_id=session.parent_id,
        root_id=session.root_id,
        session_sid=session.session_sid,
        kind=session.kind,
        status=session.status,
        depth=session.depth,
        capabilities=msgspec.Raw(session.capabilities),
        metadata=msgspec.Raw(session.metadata),
        ttl_seconds=session.ttl_seconds,
        spawned_at=iso(session.spawned_at),
        expires_at=iso(session.expires_at),
        suspended_at=iso_or_none(session.suspended_at),
        terminated_at=iso_or_none(session.terminated_at),
        termination_reason=session.termination_reason,
        created_at=iso(session.created_at),
        updated_at=iso(session.updated_at),
        limits=msgspec.Raw(session.limits),
    )
