"""Authority only narrows: in each part of an edge, and along every path of every possible graph."""

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


def excess(requested: dict[str, object], **parent: object) -> list[str]:
    terms = {name: getattr(WIDE, name) for name in GrantTerms.__slots__} | parent
    parent_terms = GrantTerms(**terms)
    return find_excess(requested_terms(delegate_command("s", "t", **requested), parent_terms, NOW), parent_terms)


# -- parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "parent", "covered"),
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
        ({"budget": "text"}, {"budget": 5}, False),
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
def test_parent_covers_a_child_that_is_within_it_in_every_part(
    requested: dict[str, object], parent: dict[str, object], covered: bool
) -> None:
    problems = excess(requested, **parent)
    assert (not problems) == covered, problems
    assert len(problems) <= 1, "one problem per part"


def test_every_exceeding_part_is_reported() -> None:
    problems = excess(
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
    assert len(problems) == 6


def test_long_excess_names_a_few_values_and_counts_the_rest() -> None:
    [problem] = excess({"scopes": tuple(f"x{n}" for n in range(9))})
    assert "x0" in problem
    assert "and 4 more" in problem
    assert len(problem) < 200


def test_omitted_parts_are_inherited_and_stored_in_the_edge() -> None:
    parent = edge_row("c", "a", constraints_json='{"actions":["read"],"budget":5,"region":"eu"}', hops=3)
    command = delegate_command("a", "b", constraints='{"note":1}')
    [outcome] = decide([command], delegation_input(parent))
    assert isinstance(outcome, DelegatedEdge)
    assert msgspec.json.decode(outcome.edge.constraints_json) == {"note": 1, "actions": ["read"], "budget": 5}
    assert (outcome.edge.hops, outcome.edge.expires_at) == (2, EDGE_EXPIRES_AT)


def test_edge_with_ten_hops_is_delegated_on_ten_times_and_no_more() -> None:
    edges: list[Edge] = []
    for n in range(12):
        command = delegate_command(f"s{n}", f"s{n + 1}", hops=10 if n == 0 else None)
        sessions = [session_row(id=f"s{k}") for k in (n, n + 1)]
        [outcome] = decide([command], delegation_input(*edges, sessions=sessions))
        if n == 11:
            assert isinstance(outcome, Problem)
            assert "no hops left" in str(outcome.members["exceeds"])
            return
        assert isinstance(outcome, DelegatedEdge)
        edges.append(outcome.edge)
        assert outcome.edge.hops == 10 - n


def test_token_lends_its_scopes_for_all_resources_and_an_admin_token_any_scope() -> None:
    plain, admin = token_terms(caller(APP, "a")), token_terms(caller(APP, COORDINATOR_ADMIN))
    assert (plain.scopes, plain.resources, admin.scopes) == (frozenset("a"), None, None)
    assert (
        find_excess(requested_terms(delegate_command("s", "t", hops=10, expires_at=EDGE_EXPIRES_AT), plain, NOW), plain)
        == []
    )


# -- paths -------------------------------------------------------------------------------------------------------

NAMES = [f"s{n}" for n in range(4)]
SETS = st.sampled_from([(), ("a",), ("b",), ("a", "b")])
REQUESTS = st.fixed_dictionaries(
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
        "token_has_edge": st.sampled_from([False, False, True]),
        "next_state": st.sampled_from([*["active"] * 8, "revoked", "expired"]),
    }
)


def is_within(child: GrantTerms, parent: GrantTerms) -> bool:
    """An independent implementation, to compare with the rules."""
    sets = ((child.scopes, parent.scopes), (child.resources, parent.resources), (child.actions, parent.actions))
    if any(
        parent_set is not None and (child_set is None or not child_set <= parent_set) for child_set, parent_set in sets
    ):
        return False
    if isinstance(parent.budget, int) and not (isinstance(child.budget, int) and child.budget <= parent.budget):
        return False
    if isinstance(parent.budget, str) and child.budget != parent.budget:
        return False
    return child.hops < parent.hops and child.expires_at <= parent.expires_at


@settings(max_examples=120, deadline=None)
@given(st.lists(REQUESTS, min_size=5, max_size=40), st.randoms(use_true_random=False))
def test_authority_never_widens_along_any_path(requests: list[dict[str, object]], rng: Random) -> None:
    """Random requests and ended edges: every edge is within all its ancestors, the first edge of every chain is within
    the scopes of its token, and the graph has no cycle."""
    edges: dict[str, Edge] = {}
    tokens: dict[str, frozenset[str]] = {}
    for request in requests:
        command = _command(request, edges, rng)
        if command.source_session_id == command.target_session_id:
            continue
        [outcome] = decide(
            [command], delegation_input(*edges.values(), sessions=[session_row(id=name) for name in NAMES])
        )
        if isinstance(outcome, DelegatedEdge):
            edges[outcome.edge.id] = outcome.edge
            tokens[outcome.edge.id] = command.caller.scopes
            assert command.caller.delegation_edge_id in (None, outcome.edge.parent_edge_id)
            _check_edge(outcome.edge, edges, tokens)
        if request["next_state"] != "active" and edges:
            _end_edge(rng.choice([*edges]), edges, EdgeState(str(request["next_state"])))
    _check_acyclic([edge for edge in edges.values() if edge.status is EdgeState.ACTIVE])


def _command(request: dict[str, object], edges: dict[str, Edge], rng: Random) -> Delegate:
    source = str(request["source"])
    inbound = [edge.id for edge in edges.values() if edge.target_session_id == source]
    scopes = request["token"]
    assert isinstance(scopes, tuple)
    token = caller(APP, *scopes)
    if request["token_has_edge"] and inbound:
        token = msgspec.structs.replace(token, delegation_edge_id=rng.choice(inbound))
    parts = ("scopes", "resources", "actions", "budget", "hops", "expires_at")
    return delegate_command(
        source,
        str(request["target"]),
        caller=token,
        parent_edge_id=rng.choice(inbound) if request["names_parent"] and inbound else None,
        constraints=msgspec.json.encode(
            {name: request[name] for name in ("actions", "budget") if request[name] is not None}
        ).decode(),
        **{name: request[name] for name in parts},
    )


def _check_edge(edge: Edge, edges: dict[str, Edge], tokens: dict[str, frozenset[str]]) -> None:
    """Compare the edge with every ancestor and with the token of the first edge."""
    terms, current = edge_terms(edge), edge
    if edge.parent_edge_id is not None:
        assert edges[edge.parent_edge_id].status is EdgeState.ACTIVE, "an ended edge lends nothing"
    while current.parent_edge_id is not None:
        parent = edges[current.parent_edge_id]
        assert parent.target_session_id == current.source_session_id
        assert is_within(terms, edge_terms(parent)), (terms, edge_terms(parent))
        current = parent
    assert terms.scopes is not None
    assert terms.scopes <= tokens[current.id]
    earlier_targets = {earlier.target_session_id for earlier in edges.values() if earlier.id < current.id}
    assert current.source_session_id not in earlier_targets, (
        "only a session without earlier inbound edges lends from a token"
    )


def _end_edge(edge_id: str, edges: dict[str, Edge], state: EdgeState) -> None:
    pending = [edge_id]
    while pending:
        current = pending.pop()
        edges[current] = msgspec.structs.replace(edges[current], status=state)
        pending += [edge.id for edge in edges.values() if edge.parent_edge_id == current]


def _check_acyclic(active: list[Edge]) -> None:
    targets: dict[str, set[str]] = {}
    for edge in active:
        targets.setdefault(edge.source_session_id, set()).add(edge.target_session_id)
    for name in NAMES:
        reached: set[str] = set()
        pending = [name]
        while pending:
            new_sessions = targets.get(pending.pop(), set()) - reached
            reached |= new_sessions
            pending += new_sessions
        assert name not in reached, (ZONE, name)
