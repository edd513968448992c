"""The arrows of a session, walked pair by pair, and the statements that must name the same states."""

from __future__ import annotations

from itertools import product

import pytest

from quarterdeck.domain.sessions.model import State, Verb
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import SESSION

ARROWS = {
    (State.ACTIVE, Verb.SUSPEND): State.SUSPENDED,
    (State.SUSPENDED, Verb.RESUME): State.ACTIVE,
    (State.ACTIVE, Verb.TERMINATE): State.TERMINATED,
    (State.SUSPENDED, Verb.TERMINATE): State.TERMINATED,
}
"""The contract's arrows, written out again. Every other pair is refused."""


@pytest.mark.parametrize(("state", "verb"), list(product(State, Verb)))
def test_every_pair_of_state_and_verb_leads_where_the_contract_says_or_nowhere(
    state: State, verb: Verb
) -> None:
    assert SESSION.target(verb, state) == ARROWS.get((state, verb))


@pytest.mark.parametrize("verb", list(Verb))
def test_a_verb_leaves_exactly_the_states_its_arrows_start_from(verb: Verb) -> None:
    assert set(SESSION.sources(verb)) == {state for state, named in ARROWS if named is verb}


def test_every_verb_has_an_arrow_and_every_state_is_reached() -> None:
    assert set(SESSION.moves) == set(Verb)
    assert {SESSION.start, *ARROWS.values()} == set(State)


def test_terminated_is_the_only_end_and_everything_else_is_live() -> None:
    assert SESSION.terminal() == (State.TERMINATED,)
    assert set(SESSION.live()) == {State.ACTIVE, State.SUSPENDED}


def test_the_statement_that_ends_sessions_guards_the_state_each_was_read_in() -> None:
    for text in (Q.sessions_end.postgresql, Q.sessions_end.sqlite):
        assert "and status = b.was" in text
        assert f"set status = '{SESSION.target(Verb.TERMINATE, State.ACTIVE)}'" in text


def test_statements_that_look_for_the_living_exclude_exactly_the_ends() -> None:
    [end] = SESSION.terminal()
    for statement in (Q.expired_unswept, Q.sessions_expired):
        assert f"status <> '{end}'" in statement.postgresql
