"""Authority only narrows: part by part, and along any path of any graph that the rules let come about."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from quarterdeck.core.caller import COORDINATOR_ADMIN
from quarterdeck.core.errors import Problem
from quarterdeck.domain.delegations.model import Delegate, DelegatedEdge, Edge, EdgeState
from quarterdeck.domain.delegations.rules.attenuation import (
    GrantTerms,
    edge_terms,
    find_excess,
    requested_terms,
    token_terms,
)
from tests.support.builders import APP, NOW, ZONE, caller, session_row
from tests.support.delegations import EDGE_EXPIRES_AT, decide, delegate_command, delegation_input, edge_row

WIDE = GrantTerms(frozenset({"a", "b"}), None, None, None, 10, EDGE_EXPIRES_AT)


def beyond(wanted: dict[str, object], **parent: object) -> list[str]:
    terms = {name: getattr(WIDE, name) for name in GrantTerms.__slots__} | parent
    above = GrantTerms(**terms)
    return find_excess(requested_terms(delegate_command("s", "t", **wanted), above, NOW), above)


# -- part by part ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "parent", "covered"),
    [
        ({"scopes": ("a",)}, {}, True),
        ({"scopes": ()}, {}, True),
        ({"scopes": ("a", "b")}, {}, True),
        ({"scopes": ("a", "c")}, {}, False),
        ({"scopes": ("c",)}, {"scopes": None}, True),
        ({"resources": ("r",)}, {}, True),
        ({"resources": ("r",)}, {"resources": frozenset("rq")}, True),
        ({"resources": ("r", "x")}, {"resources": frozenset("rq")}, False),
        ({"resources": None}, {"resources": frozenset("rq")}, False),
        ({"resources": ()}, {"resources": frozenset()}, True),
        ({"actions": ("read",)}, {"actions": frozenset({"read", "write"})}, True),
        ({"actions": ("delete",)}, {"actions": frozenset({"read"})}, False),
        ({"actions": None}, {"actions": frozenset({"read"})}, True),
        ({"budget": 5}, {"budget": 5}, True),
        ({"budget": 4.5}, {"budget": 5}, True),
        ({"budget": 6}, {"budget": 5}, False),
        ({"budget": None}, {"budget": 5}, True),
        ({"budget": "lots"}, {"budget": 5}, False),
        ({"budget": True}, {"budget": 5}, False),
        ({"budget": 1}, {"budget": True}, False),
        ({"budget": {"usd": 1}}, {"budget": {"usd": 1}}, True),
        ({"budget": {"usd": 1}}, {"budget": {"usd": 2}}, False),
        ({"budget": 6}, {}, True),
        ({"hops": 9}, {}, True),
        ({"hops": 10}, {}, False),
        ({"hops": 1}, {"hops": 2}, True),
        ({"hops": 1}, {"hops": 1}, False),
        ({"hops": None}, {"hops": 1}, True),
        ({"hops": None}, {"hops": 0}, False),
        ({"expires_at": EDGE_EXPIRES_AT}, {}, True),
        ({"expires_at": EDGE_EXPIRES_AT + 1}, {}, False),
        ({"expires_at": None}, {}, True),
    ],
)
def test_a_parent_covers_what_is_within_it_in_every_part(
    wanted: dict[str, object], parent: dict[str, object], covered: bool
) -> None:
    said = beyond(wanted, **parent)
    assert (not said) == covered, said
    assert len(said) <= 1, "one part is told once"


def test_every_part_that_exceeds_is_told() -> None:
    said = beyond(
        {
            "scopes": ("x",),
            "resources": None,
            "actions": ("x",),
            "budget": 2,
            "hops": 9,
            "expires_at": EDGE_EXPIRES_AT + 1,
        },
        resources=frozenset("r"),
        actions=frozenset("a"),
        budget=1,
        hops=3,
    )
    assert len(said) == 6


def test_a_sentence_names_a_few_and_counts_the_rest() -> None:
    [said] = beyond({"scopes": tuple(f"x{n}" for n in range(9))})
    assert "x0" in said
    assert "and 4 more" in said
    assert len(said) < 200


def test_what_is_not_said_is_taken_over_and_stands_in_the_edge_itself() -> None:
    parent = edge_row("c", "a", constraints_json='{"actions":["read"],"budget":5,"region":"eu"}', hops=3)
    ask = delegate_command("a", "b", constraints='{"note":1}')
    [done] = decide([ask], delegation_input(parent))
    assert isinstance(done, DelegatedEdge)
    assert msgspec.json.decode(done.edge.constraints_json) == {"note": 1, "actions": ["read"], "budget": 5}
    assert (done.edge.hops, done.edge.expires_at) == (2, EDGE_EXPIRES_AT)


def test_a_line_that_was_lent_for_ten_hops_is_passed_on_ten_times_and_then_ends() -> None:
    made: list[Edge] = []
    for n in range(12):
        ask = delegate_command(f"s{n}", f"s{n + 1}", hops=10 if n == 0 else None)
        names = [session_row(id=f"s{k}") for k in (n, n + 1)]
        [done] = decide([ask], delegation_input(*made, sessions=names))
        if n == 11:
            assert isinstance(done, Problem)
            assert "no hops are left" in str(done.members["exceeds"])
            return
        assert isinstance(done, DelegatedEdge)
        made.append(done.edge)
        assert done.edge.hops == 10 - n


def test_a_token_lends_its_scopes_for_everything_and_an_administrators_any() -> None:
    plain, admin = token_terms(caller(APP, "a")), token_terms(caller(APP, COORDINATOR_ADMIN))
    assert (plain.scopes, plain.resources, admin.scopes) == (frozenset("a"), None, None)
    assert (
        find_excess(requested_terms(delegate_command("s", "t", hops=10, expires_at=EDGE_EXPIRES_AT), plain, NOW), plain)
        == []
    )


# -- along any path ----------------------------------------------------------------------------------------------

NAMES = [f"s{n}" for n in range(4)]
SETS = st.sampled_from([(), ("a",), ("b",), ("a", "b")])
WISHES = st.fixed_dictionaries(
    {
        "source": st.sampled_from(NAMES),
        "target": st.sampled_from(NAMES),
        "scopes": SETS,
        "resources": st.sampled_from([None, None, None, ("a",), ("a", "b")]),
        "actions": st.sampled_from([None, None, ("a",), ("b",), ("a", "b")]),
        "budget": st.sampled_from([None, None, None, 0, 1, "word"]),
        "hops": st.sampled_from([None, None, 1, 2, 3, 10]),
        "expires_at": st.sampled_from([None, NOW + 1, NOW + 2, NOW + 3]),
        "token": st.sampled_from([("a", "b"), ("a", "b"), ("a",)]),
        "names_parent": st.booleans(),
        "held_to_edge": st.sampled_from([False, False, True]),
        "fate": st.sampled_from([*["stays"] * 8, "revoked", "expired"]),
    }
)


def within(child: GrantTerms, parent: GrantTerms) -> bool:
    """Written again, so that the rules are not held against themselves."""
    sets = ((child.scopes, parent.scopes), (child.resources, parent.resources), (child.actions, parent.actions))
    if any(bound is not None and (own is None or not own <= bound) for own, bound in sets):
        return False
    if isinstance(parent.budget, int) and not (isinstance(child.budget, int) and child.budget <= parent.budget):
        return False
    if isinstance(parent.budget, str) and child.budget != parent.budget:
        return False
    return child.hops < parent.hops and child.expires_at <= parent.expires_at


@settings(max_examples=120, deadline=None)
@given(st.lists(WISHES, min_size=5, max_size=40), st.randoms(use_true_random=False))
def test_authority_never_widens_along_any_path(wishes: list[dict[str, object]], chance: Random) -> None:
    """Whatever is asked by whomever, in whatever order, and whatever ends meanwhile: every edge is within each of its
    parents, every line begins with a token that held its scopes, and no two edges lead back to where they began."""
    made: dict[str, Edge] = {}
    tokens: dict[str, frozenset[str]] = {}
    for wish in wishes:
        ask = _ask(wish, made, chance)
        if ask.source_session_id == ask.target_session_id:
            continue
        [done] = decide([ask], delegation_input(*made.values(), sessions=[session_row(id=name) for name in NAMES]))
        if isinstance(done, DelegatedEdge):
            made[done.edge.id] = done.edge
            tokens[done.edge.id] = ask.caller.scopes
            assert ask.caller.delegation_edge_id in (None, done.edge.parent_edge_id)
            _held(done.edge, made, tokens)
        if wish["fate"] != "stays" and made:
            _over(chance.choice([*made]), made, EdgeState(str(wish["fate"])))
    _nobody_lends_to_itself([each for each in made.values() if each.status is EdgeState.ACTIVE])


def _ask(wish: dict[str, object], made: dict[str, Edge], chance: Random) -> Delegate:
    source = str(wish["source"])
    into = [each.id for each in made.values() if each.target_session_id == source]
    scopes = wish["token"]
    assert isinstance(scopes, tuple)
    token = caller(APP, *scopes)
    if wish["held_to_edge"] and into:
        token = msgspec.structs.replace(token, delegation_edge_id=chance.choice(into))
    parts = ("scopes", "resources", "actions", "budget", "hops", "expires_at")
    return delegate_command(
        source,
        str(wish["target"]),
        caller=token,
        parent_edge_id=chance.choice(into) if wish["names_parent"] and into else None,
        constraints=msgspec.json.encode(
            {name: wish[name] for name in ("actions", "budget") if wish[name] is not None}
        ).decode(),
        **{name: wish[name] for name in parts},
    )


def _held(lent: Edge, made: dict[str, Edge], tokens: dict[str, frozenset[str]]) -> None:
    """Against every one of its parents, not only the nearest, and against the token at the beginning."""
    own, above = edge_terms(lent), lent
    if lent.parent_edge_id is not None:
        assert made[lent.parent_edge_id].status is EdgeState.ACTIVE, "what is over lends nothing"
    while above.parent_edge_id is not None:
        nearest = made[above.parent_edge_id]
        assert nearest.target_session_id == above.source_session_id
        assert within(own, edge_terms(nearest)), (own, edge_terms(nearest))
        above = nearest
    assert own.scopes is not None
    assert own.scopes <= tokens[above.id]
    ever_led_to = {each.target_session_id for each in made.values() if each.id < above.id}
    assert above.source_session_id not in ever_led_to, "only whom nothing ever led to lends out of a token"


def _over(edge_id: str, made: dict[str, Edge], state: EdgeState) -> None:
    pending = [edge_id]
    while pending:
        name = pending.pop()
        made[name] = msgspec.structs.replace(made[name], status=state)
        pending += [each.id for each in made.values() if each.parent_edge_id == name]


def _nobody_lends_to_itself(active: list[Edge]) -> None:
    ahead: dict[str, set[str]] = {}
    for each in active:
        ahead.setdefault(each.source_session_id, set()).add(each.target_session_id)
    for name in NAMES:
        met: set[str] = set()
        pending = [name]
        while pending:
            fresh = ahead.get(pending.pop(), set()) - met
            met |= fresh
            pending += fresh
        assert name not in met, (ZONE, name)
