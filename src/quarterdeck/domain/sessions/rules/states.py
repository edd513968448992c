"""The life of a session: its states, how it reads at a moment, and whose token is still good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis, iso, iso_or_none
from quarterdeck.core.errors import Conflict, Forbidden, NotFound, Unauthenticated
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.domain.sessions.model import Session, SessionView, State, Verb

SESSION: StateMachine[State, Verb] = StateMachine(
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
"""The reason of what ended by its time."""


class LivenessFields(Protocol):
    """What of a row decides whether a session is live."""

    @property
    def status(self) -> State: ...
    @property
    def expires_at(self) -> Millis: ...
    @property
    def terminated_at(self) -> Millis | None: ...


def is_live(session: LivenessFields, now: Millis) -> bool:
    """Active or suspended, not expired, and not stamped by an ending that is under way."""
    return session.status is not State.TERMINATED and session.terminated_at is None and session.expires_at > now


def effective_session(session: Session, now: Millis) -> Session:
    """A session as it reads at this moment: stamped or expired is terminated, whether or not a chunk or a sweep has
    come to it yet."""
    if session.status is State.TERMINATED or is_live(session, now):
        return session
    if session.terminated_at is not None:
        return msgspec.structs.replace(session, status=State.TERMINATED)
    return msgspec.structs.replace(
        session, status=State.TERMINATED, terminated_at=session.expires_at, termination_reason=TTL_EXPIRED
    )


# -- refusals ----------------------------------------------------------------------------------------------------


def session_not_found(session_id: str) -> NotFound:
    return NotFound("agent_not_found", f"There is no session {session_id!r} in this zone.")


def ownership_required(application_id: str) -> Forbidden:
    return Forbidden(
        "application_ownership_required", f"This token may not act for the application {application_id!r}."
    )


def session_suspended(session_id: str) -> Conflict:
    return Conflict(
        "agent_suspended", f"The session {session_id!r} is suspended, and begins nothing.", frees="it is resumed"
    )


def suspended_caller_problem(caller: Caller | None, sessions: Mapping[tuple[str, str], Session]) -> Conflict | None:
    """A session that sleeps goes on with what it holds, and begins nothing: neither in its own name nor in that of its
    application or of another session. Everything that spawns, invokes, lends, registers or takes work asks this."""
    if caller is None:
        return None
    for name in (caller.session_id, caller.agent_id):
        session = sessions.get((caller.zone_id, name)) if name is not None else None
        if session is not None and session.status is State.SUSPENDED:
            return session_suspended(session.id)
    return None


def bearer_problem(
    bearer: Bearer | None, sessions: Mapping[tuple[str, str], Session], now: Millis
) -> Unauthenticated | None:
    """A token that speaks for a session is good only while that session lives. One that names an agent is good until
    that one is known to have ended: not every agent is a session."""
    if bearer is None:
        return None
    agent = sessions.get((bearer.zone_id, bearer.agent_id)) if bearer.agent_id is not None else None
    if agent is not None and not is_live(agent, now):
        return _session_ended()
    if bearer.session_id is None:
        return None
    session = sessions.get((bearer.zone_id, bearer.session_id))
    return None if session is not None and is_live(session, now) else _session_ended()


def _session_ended() -> Unauthenticated:
    return Unauthenticated("session_ended", "The session this token speaks for has ended.")


# -- how it is shown ---------------------------------------------------------------------------------------------


def view(session: Session) -> SessionView:
    """A session as it is shown. What is JSON already is passed through as it is."""
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
