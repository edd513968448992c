"""Which tokens are still valid, and in which order a caller's problems are returned."""

from __future__ import annotations

import pytest

from quarterdeck.core.caller import Bearer
from quarterdeck.core.errors import Unauthenticated
from quarterdeck.domain.access.model import CallerAgent, CallerSession
from quarterdeck.domain.access.rules import (
    AGENT_TERMINATED,
    SESSION_SUSPENDED,
    SESSION_TERMINATED,
    is_live,
    suspended_caller_problem,
    token_problem,
)
from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.sessions.model import State as SessionState
from tests.support.agents import agent_caller
from tests.support.builders import NOW, ZONE, caller

LATER = NOW + 1_000


def session(session_id: str, status: str = "active", **fields: int | None) -> CallerSession:
    return CallerSession(ZONE, session_id, status, fields.get("expires_at") or LATER, fields.get("terminated_at"))


SESSIONS = {
    (ZONE, row.id): row
    for row in (
        session("live"),
        session("suspended", SESSION_SUSPENDED),
        session("terminated", SESSION_TERMINATED, terminated_at=NOW - 1),
        session("marked", terminated_at=NOW - 1),
        session("expired", expires_at=NOW),
        session("ended-agent", SESSION_TERMINATED, terminated_at=NOW - 1),
    )
}
AGENTS = {
    (ZONE, row.id): row
    for row in (
        CallerAgent(ZONE, "agent", AgentState.IDLE, NOW),
        CallerAgent(ZONE, "terminated-agent", AgentState.TERMINATED, NOW),
        CallerAgent(ZONE, "ended-agent", AgentState.TERMINATED, NOW),
    )
}


def code(bearer: Bearer | None) -> str | None:
    problem = token_problem(bearer, SESSIONS, AGENTS, NOW)
    assert problem is None or (isinstance(problem, Unauthenticated) and problem.status == 401)
    return problem.code if problem else None


def test_states_have_the_names_that_sessions_and_agents_store() -> None:
    assert (SESSION_TERMINATED, SESSION_SUSPENDED) == (SessionState.TERMINATED, SessionState.SUSPENDED)
    assert AgentState.TERMINATED == AGENT_TERMINATED


def test_credential_without_a_bearer_is_valid() -> None:
    assert code(None) is None


@pytest.mark.parametrize("session_id", ["live", "suspended"])
def test_token_of_a_live_session_is_valid(session_id: str) -> None:
    assert code(Bearer(ZONE, session_id)) is None


@pytest.mark.parametrize("session_id", ["terminated", "marked", "expired", "unknown"])
def test_token_of_an_ended_session_is_refused(session_id: str) -> None:
    assert code(Bearer(ZONE, session_id)) == "session_ended"
    assert code(Bearer(ZONE, session_id, "agent", agent_since=NOW)) == "session_ended"


def test_session_of_another_zone_is_unknown() -> None:
    assert code(Bearer("other", "live")) == "session_ended"


@pytest.mark.parametrize("agent_id", ["unknown", "live", "agent"])
def test_token_of_an_agent_is_valid_with_or_without_a_session_and_a_registration(agent_id: str) -> None:
    assert code(Bearer(ZONE, None, agent_id)) is None


def test_token_of_an_agent_is_refused_when_the_session_with_its_id_has_ended() -> None:
    assert code(Bearer(ZONE, None, "expired")) == "session_ended"
    assert code(Bearer(ZONE, "live", "expired")) == "session_ended"


def test_token_of_a_terminated_agent_is_refused_also_with_a_live_session() -> None:
    assert code(Bearer(ZONE, None, "terminated-agent")) == "agent_ended"
    assert code(Bearer(ZONE, "live", "terminated-agent", agent_since=NOW)) == "agent_ended"


def test_problem_of_the_session_comes_before_the_problem_of_the_agent() -> None:
    assert code(Bearer(ZONE, "terminated", "terminated-agent")) == "session_ended"
    assert code(Bearer(ZONE, None, "ended-agent")) == "session_ended"


@pytest.mark.parametrize(
    ("claims", "is_valid"),
    [
        ({"agent_since": NOW}, True),
        ({"agent_since": NOW - 1, "issued_at": NOW + 9}, False),
        ({"agent_since": NOW + 1, "issued_at": NOW + 9}, False),
        ({"issued_at": NOW}, True),
        ({"issued_at": NOW - 1}, False),
        ({"issued_at": 0}, False),
    ],
)
def test_agent_token_is_valid_only_for_its_registration(claims: dict[str, int], is_valid: bool) -> None:
    assert (code(Bearer(ZONE, None, "agent", **claims)) is None) is is_valid
    assert code(Bearer(ZONE, None, "terminated-agent", **claims)) == "agent_ended"


def test_caller_is_suspended_with_its_session_or_the_session_of_its_agent() -> None:
    for suspended in (caller(session_id="suspended"), agent_caller("suspended")):
        problem = suspended_caller_problem(suspended, SESSIONS)
        assert problem is not None and problem.code == "agent_suspended"
    for other in (None, caller(), caller(session_id="live"), agent_caller("agent")):
        assert suspended_caller_problem(other, SESSIONS) is None


def test_session_marked_by_a_cascade_or_past_its_expiry_is_not_live() -> None:
    assert {row.id for row in SESSIONS.values() if is_live(row, NOW)} == {"live", "suspended"}
