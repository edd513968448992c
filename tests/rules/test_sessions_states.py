"""The transitions of a session for every pair of state and verb, and the SQL that must name the same states."""

from __future__ import annotations

from itertools import product

import pytest

from quarterdeck.domain.sessions.model import State, Verb
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import SESSION_STATES

TRANSITIONS = {
    (State.ACTIVE, Verb.SUSPEND): State.SUSPENDED,
    (State.SUSPENDED, Verb.RESUME): State.ACTIVE,
    (State.ACTIVE, Verb.TERMINATE): State.TERMINATED,
    (State.SUSPENDED, Verb.TERMINATE): State.TERMINATED,
}
"""The transitions, written out a second time. Every other pair is refused."""
STATEMENTS = {statement.name: statement for statement in Q}


@pytest.mark.parametrize(("state", "verb"), list(product(State, Verb)))
def test_every_state_and_verb_pair_matches_the_transition_table(state: State, verb: Verb) -> None:
    assert SESSION_STATES.next_state(verb, state) == TRANSITIONS.get((state, verb))


@pytest.mark.parametrize("verb", list(Verb))
def test_source_states_of_a_verb_match_the_transition_table(verb: Verb) -> None:
    assert set(SESSION_STATES.transitions[verb]) == {state for state, other in TRANSITIONS if other is verb}


def test_every_verb_has_a_transition_and_every_state_is_reachable() -> None:
    assert set(SESSION_STATES.transitions) == set(Verb)
    assert {SESSION_STATES.initial, *TRANSITIONS.values()} == set(State)


def test_terminated_is_the_only_terminal_state_and_all_others_are_live() -> None:
    assert SESSION_STATES.terminal_states() == (State.TERMINATED,)
    assert set(SESSION_STATES.nonterminal_states()) == {State.ACTIVE, State.SUSPENDED}


@pytest.mark.parametrize(
    "name", ["sessions_end", "sessions_mark_cascade", "sessions_finish_cascade", "sessions_set_suspended"]
)
def test_every_session_update_is_guarded_by_the_loaded_state(name: str) -> None:
    for text in (STATEMENTS[name].postgresql, STATEMENTS[name].sqlite):
        assert text.startswith("update agent_sessions")
        assert "and status = b.from_status" in text
        assert text.endswith("returning id"), "a row that was not updated is not returned"


def test_terminating_statements_write_the_state_of_the_table() -> None:
    for name in ("sessions_end", "sessions_finish_cascade"):
        for text in (STATEMENTS[name].postgresql, STATEMENTS[name].sqlite):
            assert f"set status = '{SESSION_STATES.next_state(Verb.TERMINATE, State.ACTIVE)}'" in text


def test_live_session_statements_exclude_terminal_and_terminated_rows() -> None:
    [terminal_state] = SESSION_STATES.terminal_states()
    for name in ("sessions_expired_unswept", "sessions_expired", "sessions_orphaned"):
        assert f"s.status <> '{terminal_state}'" in STATEMENTS[name].postgresql
        assert "s.terminated_at is null" in STATEMENTS[name].postgresql
