"""Session states, the state of a session at a given time, and which tokens are still valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis, iso, iso_or_none
from quarterdeck.core.errors import Conflict, Forbidden, NotFound, Unauthenticated
from quarterdeck.core.state_machine import StateMachine
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


class LivenessFields(Protocol):
    """The columns that decide whether a session is live."""

    @property
    def status(self) -> State: ...
    @property
    def expires_at(self) -> Millis: ...
    @property
    def terminated_at(self) -> Millis | None: ...


def is_live(session: LivenessFields, now: Millis) -> bool:
    """Active or suspended, not expired, and not marked by a cascade."""
    return session.status is not State.TERMINATED and session.terminated_at is None and session.expires_at > now


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


def session_suspended(session_id: str) -> Conflict:
    return Conflict(
        "agent_suspended", f"Session {session_id!r} is suspended and cannot start anything.", frees="it is resumed"
    )


def suspended_caller_problem(caller: Caller | None, sessions: Mapping[tuple[str, str], Session]) -> Conflict | None:
    """A problem if the caller's session is suspended, else None.

    A suspended session may finish the work it holds. It may not start anything, whether for itself, for its application
    or for another session. Spawns, invocations, delegations, registrations and claims check this.
    """
    if caller is None:
        return None
    for session_id in (caller.session_id, caller.agent_id):
        session = sessions.get((caller.zone_id, session_id)) if session_id is not None else None
        if session is not None and session.status is State.SUSPENDED:
            return session_suspended(session.id)
    return None


def bearer_problem(
    bearer: Bearer | None, sessions: Mapping[tuple[str, str], Session], now: Millis
) -> Unauthenticated | None:
    """A problem if the bearer's token is no longer valid, else None.

    A session's token is valid only while the session is live. An agent's token is valid even if the agent has no
    session, but not if a session with the agent's id has ended.
    """
    if bearer is None:
        return None
    agent_session = sessions.get((bearer.zone_id, bearer.agent_id)) if bearer.agent_id is not None else None
    if agent_session is not None and not is_live(agent_session, now):
        return _session_ended()
    if bearer.session_id is None:
        return None
    session = sessions.get((bearer.zone_id, bearer.session_id))
    return None if session is not None and is_live(session, now) else _session_ended()


def _session_ended() -> Unauthenticated:
    return Unauthenticated("session_ended", "The session of this token has ended.")


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
