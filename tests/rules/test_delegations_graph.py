"""Rules of the delegation graph: what a revocation ends, and the distance of edges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given, strategies as st

from quarterdeck.core.ids import Ref
from quarterdeck.domain.delegations.model import ChainEdge, GraphEdge
from quarterdeck.domain.delegations.rules.graph import Revocation, RevocationGraph, edges_by_level, find_orphaned
from quarterdeck.domain.delegations.rules.states import PARENT_REVOKED, REQUESTED, SESSION_ENDED
from tests.support.builders import NOW, ZONE
from tests.support.delegations import graph_edge


def graph_of(*edges: GraphEdge) -> RevocationGraph:
    graph = RevocationGraph(NOW)
    graph.add_edges(edges)
    return graph


def ref(edge: GraphEdge) -> Ref:
    return edge.zone_id, edge.id


def revoked_ids(revocation: Revocation) -> set[str]:
    return {edge.id for edge, _ in revocation.edges}


def ended_ids(revocation: Revocation) -> list[str]:
    return [session for _, session in revocation.ended_sessions]


def derived_chain(number: int) -> list[GraphEdge]:
    """Edges from s0 on, each derived from the one before."""
    edges: list[GraphEdge] = []
    for n in range(number):
        edges.append(graph_edge(f"s{n}", f"s{n + 1}", edges[-1].id if edges else None))
    return edges


# -- revocation --------------------------------------------------------------------------------------------------


def test_revoking_the_first_edge_ends_the_chain_and_all_sessions_but_the_first() -> None:
    edges = derived_chain(11)
    revocation = graph_of(*edges).revoke(ref(edges[0]), ends_sessions=True)
    assert revoked_ids(revocation) == {edge.id for edge in edges}
    assert set(ended_ids(revocation)) == {f"s{n}" for n in range(1, 12)}
    assert {edge.id: reason for edge, reason in revocation.edges} == {
        edges[0].id: REQUESTED,
        **{edge.id: PARENT_REVOKED for edge in edges[1:]},
    }


def test_chain_of_underived_edges_ends_session_by_session() -> None:
    edges = [graph_edge(f"s{n}", f"s{n + 1}") for n in range(11)]
    revocation = graph_of(*edges).revoke(ref(edges[0]), ends_sessions=True)
    assert set(ended_ids(revocation)) == {f"s{n}" for n in range(1, 12)}
    assert {reason for _, reason in revocation.edges} == {REQUESTED, SESSION_ENDED}


def test_revoking_without_ending_sessions_revokes_only_derived_edges() -> None:
    first, second = graph_edge("a", "b"), graph_edge("b", "c")
    third = graph_edge("b", "d", first.id)
    revocation = graph_of(first, second, third).revoke(ref(first), ends_sessions=False)
    assert revoked_ids(revocation) == {first.id, third.id}
    assert ended_ids(revocation) == []


def test_session_with_another_inbound_edge_is_not_ended() -> None:
    first, other = graph_edge("a", "b"), graph_edge("z", "b")
    derived = graph_edge("b", "c", first.id)
    revocation = graph_of(first, other, derived).revoke(ref(first), ends_sessions=True)
    assert revoked_ids(revocation) == {first.id, derived.id}
    assert ended_ids(revocation) == ["c"]


def test_expired_edge_supports_no_session() -> None:
    first, expired = graph_edge("a", "b"), graph_edge("z", "b", expires_at=NOW)
    graph = graph_of(first, expired)
    assert ended_ids(graph.revoke(ref(first), ends_sessions=True)) == ["b"]
    assert revoked_ids(graph.revoke(ref(expired), ends_sessions=True)) == set(), "an expired edge is not revoked"


def test_orphaned_edge_supports_no_session_and_ends_with_its_target() -> None:
    first, orphaned = graph_edge("a", "b"), graph_edge("z", "b")
    graph = RevocationGraph(NOW)
    graph.add_edges([first, orphaned], {ref(orphaned)})
    revocation = graph.revoke(ref(first), ends_sessions=True)
    assert ended_ids(revocation) == ["b"]
    assert {edge.id: reason for edge, reason in revocation.edges} == {first.id: REQUESTED, orphaned.id: SESSION_ENDED}


def test_edge_is_orphaned_if_any_ancestor_edge_is() -> None:
    chain = [ChainEdge(ZONE, "e1", None, 0), ChainEdge(ZONE, "e2", "e1", 1), ChainEdge(ZONE, "e3", "e2", 0)]
    others = [ChainEdge(ZONE, "e4", "e1", 0), ChainEdge(ZONE, "e5", "deleted", 0), ChainEdge("other", "e3", None, 0)]
    assert find_orphaned([*others, *reversed(chain)]) == {(ZONE, "e2"), (ZONE, "e3")}
    assert find_orphaned([]) == set()


def test_session_with_two_inbound_edges_ends_with_the_second() -> None:
    left, right = graph_edge("a", "b"), graph_edge("a", "c")
    graph = graph_of(left, right, graph_edge("b", "d", left.id), graph_edge("c", "d", right.id))
    assert ended_ids(graph.revoke(ref(left), ends_sessions=True)) == ["b"]
    assert set(ended_ids(graph.revoke(ref(right), ends_sessions=True))) == {"c", "d"}


def test_revoked_edges_are_not_revoked_again_after_reloading() -> None:
    edges = derived_chain(3)
    graph = graph_of(*edges)
    graph.revoke(ref(edges[0]), ends_sessions=True)
    graph.add_edges(edges)
    second_revocation = graph.revoke(ref(edges[0]), ends_sessions=True)
    assert (second_revocation.edges, second_revocation.ended_sessions) == ([], [])


def test_ended_child_session_ends_its_own_edges() -> None:
    first = graph_edge("a", "b")
    graph = graph_of(first)
    revocation = graph.revoke(ref(first), ends_sessions=True)
    child_edge, unrelated = graph_edge("child", "c"), graph_edge("x", "d")
    graph.add_edges([child_edge, unrelated, graph_edge("child", "d")])
    graph.end_sessions([(ZONE, "child")], revocation)
    assert child_edge.id in revoked_ids(revocation)
    assert set(ended_ids(revocation)) == {"b", "c"}
    assert unrelated.id not in revoked_ids(revocation)


@st.composite
def graphs(draw: st.DrawFn) -> list[GraphEdge]:
    """Acyclic graphs. The parent of an edge is None or an earlier edge into its source."""
    edges: list[GraphEdge] = []
    for source, target in draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=25)):
        if source < target:
            inbound = [edge.id for edge in edges if edge.target_session_id == str(source)]
            parent = draw(st.sampled_from([None, *inbound]))
            edges.append(graph_edge(str(source), str(target), parent))
    return edges


@given(graphs(), st.data())
def test_revocation_matches_a_fixpoint_of_the_rules(edges: list[GraphEdge], data: st.DataObject) -> None:
    if not edges:
        return
    first = data.draw(st.sampled_from(edges))
    ends_sessions = data.draw(st.booleans())
    revocation = graph_of(*edges).revoke(ref(first), ends_sessions=ends_sessions)
    revoked, ended = fixpoint(edges, first, ends_sessions=ends_sessions)
    assert revoked_ids(revocation) == revoked
    assert set(ended_ids(revocation)) == ended
    assert len(revocation.edges) == len(revoked), "every edge once"


def fixpoint(edges: Sequence[GraphEdge], first: GraphEdge, *, ends_sessions: bool) -> tuple[set[str], set[str]]:
    """Apply every rule until nothing changes."""
    revoked, ended = {first.id}, set[str]()
    while True:
        newly_revoked = {edge.id for edge in edges if edge.parent_edge_id in revoked}
        newly_revoked |= {edge.id for edge in edges if {edge.source_session_id, edge.target_session_id} & ended}
        supported = {edge.target_session_id for edge in edges if edge.id not in revoked | newly_revoked}
        unsupported = (
            {edge.target_session_id for edge in edges if edge.id in revoked | newly_revoked} - supported
            if ends_sessions
            else set()
        )
        if newly_revoked <= revoked and unsupported <= ended:
            return revoked, ended
        revoked |= newly_revoked
        ended |= unsupported


# -- levels ------------------------------------------------------------------------------------------------------


def level_ids(levels: Iterable[tuple[int, bool, GraphEdge]]) -> list[tuple[int, bool, str]]:
    return [(level, derived, edge.id) for level, derived, edge in levels]


def test_edges_by_level_lists_every_edge_once_nearest_first() -> None:
    first = graph_edge("a", "b", id="e0")
    near, far = graph_edge("b", "c", "e0", id="e1"), graph_edge("c", "d", "e1", id="e2")
    shortcut, parallel = graph_edge("b", "d", id="e3"), graph_edge("b", "c", "e0", id="e4")
    assert level_ids(edges_by_level(first, [far, parallel, shortcut, near, first])) == [
        (0, True, "e0"),
        (1, True, "e1"),
        (1, False, "e3"),
        (1, True, "e4"),
        (2, True, "e2"),
    ]


def test_parallel_edges_are_visited_once_each_and_not_once_per_path() -> None:
    edges = [graph_edge(f"s{n}", f"s{n + 1}") for n in range(10) for _ in range(3)]
    levels = edges_by_level(edges[0], edges)
    assert len(levels) == 1 + 27
    assert max(level for level, _, _ in levels) == 9
