"""The pure rules of access: which tokens are still valid, and what a suspended session may not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Conflict, Unauthenticated
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access.model import CallerAgent

SESSION_TERMINATED = "terminated"
SESSION_SUSPENDED = "suspended"
AGENT_TERMINATED = "TERMINATED"


class LivenessFields(Protocol):
    """The columns that decide whether a session is live."""

    @property
    def id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def expires_at(self) -> Millis: ...
    @property
    def terminated_at(self) -> Millis | None: ...


def is_live(session: LivenessFields, now: Millis) -> bool:
    """Active or suspended, not expired, and not marked by a cascade."""
    return session.status != SESSION_TERMINATED and session.terminated_at is None and session.expires_at > now


def token_problem(
    bearer: Bearer | None, sessions: Mapping[Ref, LivenessFields], agents: Mapping[Ref, CallerAgent], now: Millis
) -> Unauthenticated | None:
    """The problem if a token is no longer valid: first that of its session, then that of its agent."""
    if bearer is None:
        return None
    agent = agents.get((bearer.zone_id, bearer.agent_id)) if bearer.agent_id is not None else None
    return _session_problem(bearer, sessions, now) or (None if agent is None else _agent_problem(bearer, agent))


def _session_problem(bearer: Bearer, sessions: Mapping[Ref, LivenessFields], now: Millis) -> Unauthenticated | None:
    """A session's token is valid only while the session is live.

    An agent's token is valid even if the agent has no session, but not if a session with the agent's id has ended.
    """
    agent_session = sessions.get((bearer.zone_id, bearer.agent_id)) if bearer.agent_id is not None else None
    if agent_session is not None and not is_live(agent_session, now):
        return _session_ended()
    if bearer.session_id is None:
        return None
    session = sessions.get((bearer.zone_id, bearer.session_id))
    return None if session is not None and is_live(session, now) else _session_ended()


def _agent_problem(bearer: Bearer, agent: CallerAgent) -> Unauthenticated | None:
    """An agent's token is valid for only one registration. A token whose agent is not registered is valid."""
    if agent.status == AGENT_TERMINATED:
        return Unauthenticated("agent_ended", "The agent of this token was terminated.")
    if bearer.agent_since is not None:
        is_same_registration = bearer.agent_since == agent.registered_at
    else:
        # The token does not name the registration that it was issued for: compare the time of issue instead.
        is_same_registration = bearer.issued_at is None or bearer.issued_at >= agent.registered_at
    if is_same_registration:
        return None
    return Unauthenticated(
        "agent_ended", "The agent was registered again after this token was issued. Request a new token."
    )


def suspended_caller_problem(caller: Caller | None, sessions: Mapping[Ref, LivenessFields]) -> Conflict | None:
    """A problem if the caller's session is suspended, else None.

    A suspended session may finish the work it holds. It may not start anything, whether for itself, for its application
    or for another session. Spawns, invocations, delegations, registrations and claims check this.
    """
    if caller is None:
        return None
    for session_id in (caller.session_id, caller.agent_id):
        session = sessions.get((caller.zone_id, session_id)) if session_id is not None else None
        if session is not None and session.status == SESSION_SUSPENDED:
            return session_suspended(session.id)
    return None


# -- errors ------------------------------------------------------------------------------------------------------


def session_suspended(session_id: str) -> Conflict:
    return Conflict(
        "agent_suspended", f"Session {session_id!r} is suspended and cannot start anything.", frees="it is resumed"
    )


def _session_ended() -> Unauthenticated:
    return Unauthenticated("session_ended", "The session of this token has ended.")
