"""The arrows of a session, walked pair by pair, and the statements that must name the same states."""

from __future__ import annotations

from itertools import product

import pytest

from quarterdeck.domain.sessions.model import State, Verb
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import SESSION
from quarterdeck.store.sql import Statement

ARROWS = {
    (State.ACTIVE, Verb.SUSPEND): State.SUSPENDED,
    (State.SUSPENDED, Verb.RESUME): State.ACTIVE,
    (State.ACTIVE, Verb.TERMINATE): State.TERMINATED,
    (State.SUSPENDED, Verb.TERMINATE): State.TERMINATED,
}
"""The contract's arrows, written out again. Every other pair is refused."""


@pytest.mark.parametrize(("state", "verb"), list(product(State, Verb)))
def test_every_pair_of_state_and_verb_leads_where_the_contract_says_or_nowhere(state: State, verb: Verb) -> None:
    assert SESSION.next_state(verb, state) == ARROWS.get((state, verb))


@pytest.mark.parametrize("verb", list(Verb))
def test_a_verb_leaves_exactly_the_states_its_arrows_start_from(verb: Verb) -> None:
    assert set(SESSION.source_states(verb)) == {state for state, named in ARROWS if named is verb}


def test_every_verb_has_an_arrow_and_every_state_is_reached() -> None:
    assert set(SESSION.transitions) == set(Verb)
    assert {SESSION.initial, *ARROWS.values()} == set(State)


def test_terminated_is_the_only_end_and_everything_else_is_live() -> None:
    assert SESSION.terminal_states() == (State.TERMINATED,)
    assert set(SESSION.live_states()) == {State.ACTIVE, State.SUSPENDED}


@pytest.mark.parametrize(
    "statement",
    [Q.sessions_end, Q.sessions_mark_cascade, Q.sessions_finish_cascade, Q.sessions_set_suspended],
    ids=lambda one: one.name,
)
def test_every_statement_that_moves_sessions_guards_the_state_each_was_read_in(statement: Statement) -> None:
    for text in (statement.postgresql, statement.sqlite):
        assert text.startswith("update agent_sessions")
        assert "and status = b.was" in text
        assert text.endswith("returning id"), "what did not move is not in the answer"


def test_the_statements_that_end_sessions_write_the_state_that_the_arrows_lead_to() -> None:
    for statement in (Q.sessions_end, Q.sessions_finish_cascade):
        for text in (statement.postgresql, statement.sqlite):
            assert f"set status = '{SESSION.next_state(Verb.TERMINATE, State.ACTIVE)}'" in text


def test_statements_that_look_for_the_living_exclude_exactly_the_ends_and_what_is_stamped() -> None:
    [end] = SESSION.terminal_states()
    for statement in (Q.sessions_expired_unswept, Q.sessions_expired, Q.sessions_orphaned):
        assert f"s.status <> '{end}'" in statement.postgresql
        assert "s.terminated_at is null" in statement.postgresql
