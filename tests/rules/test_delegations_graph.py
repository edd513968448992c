"""The graph, the pure part: what falls with an edge, and how far ahead things are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given, strategies as st

from quarterdeck.domain.delegations.model import ChainEdge, GraphEdge
from quarterdeck.domain.delegations.rules import Revocation, RevocationGraph, edges_by_level, find_orphaned
from quarterdeck.domain.delegations.rules.states import PARENT_REVOKED, REQUESTED, SESSION_ENDED, Ref
from tests.support.builders import NOW, ZONE
from tests.support.delegations import graph_edge


def falling(*links: GraphEdge) -> RevocationGraph:
    made = RevocationGraph(NOW)
    made.add_edges(links)
    return made


def ref(edge: GraphEdge) -> Ref:
    return edge.zone_id, edge.id


def names(fell: Revocation) -> set[str]:
    return {edge.id for edge, _ in fell.edges}


def emptied(fell: Revocation) -> list[str]:
    return [session for _, session in fell.ended_sessions]


def derived_chain(number: int) -> list[GraphEdge]:
    """From s0 on, each derived from the one before."""
    links: list[GraphEdge] = []
    for n in range(number):
        links.append(graph_edge(f"s{n}", f"s{n + 1}", links[-1].id if links else None))
    return links


# -- what falls --------------------------------------------------------------------------------------------------


def test_the_head_of_a_chain_takes_all_of_it_and_ends_everybody_but_the_first() -> None:
    links = derived_chain(11)
    fell = falling(*links).revoke(ref(links[0]), ends_sessions=True)
    assert names(fell) == {each.id for each in links}
    assert set(emptied(fell)) == {f"s{n}" for n in range(1, 12)}
    assert {each.id: reason for each, reason in fell.edges} == {
        links[0].id: REQUESTED,
        **{each.id: PARENT_REVOKED for each in links[1:]},
    }


def test_a_chain_of_edges_that_are_not_derived_falls_session_by_session() -> None:
    links = [graph_edge(f"s{n}", f"s{n + 1}") for n in range(11)]
    fell = falling(*links).revoke(ref(links[0]), ends_sessions=True)
    assert set(emptied(fell)) == {f"s{n}" for n in range(1, 12)}
    assert {reason for _, reason in fell.edges} == {REQUESTED, SESSION_ENDED}


def test_whoever_keeps_sessions_loses_the_derived_edges_alone() -> None:
    first, second = graph_edge("a", "b"), graph_edge("b", "c")
    third = graph_edge("b", "d", first.id)
    fell = falling(first, second, third).revoke(ref(first), ends_sessions=False)
    assert names(fell) == {first.id, third.id}
    assert emptied(fell) == []


def test_a_session_that_another_edge_leads_to_is_not_ended() -> None:
    first, other = graph_edge("a", "b"), graph_edge("z", "b")
    behind = graph_edge("b", "c", first.id)
    fell = falling(first, other, behind).revoke(ref(first), ends_sessions=True)
    assert names(fell) == {first.id, behind.id}
    assert emptied(fell) == ["c"]


def test_an_edge_past_its_time_holds_nobody() -> None:
    first, over = graph_edge("a", "b"), graph_edge("z", "b", expires_at=NOW)
    graph = falling(first, over)
    assert emptied(graph.revoke(ref(first), ends_sessions=True)) == ["b"]
    assert names(graph.revoke(ref(over), ends_sessions=True)) == set(), "and is not revoked: it has expired"


def test_a_hollow_edge_holds_nobody_and_falls_with_whom_it_led_to() -> None:
    first, empty = graph_edge("a", "b"), graph_edge("z", "b")
    graph = RevocationGraph(NOW)
    graph.add_edges([first, empty], {ref(empty)})
    fell = graph.revoke(ref(first), ends_sessions=True)
    assert emptied(fell) == ["b"]
    assert {each.id: reason for each, reason in fell.edges} == {first.id: REQUESTED, empty.id: SESSION_ENDED}


def test_an_edge_is_hollow_if_anybody_up_its_line_has_ended() -> None:
    line = [ChainEdge(ZONE, "e1", None, 0), ChainEdge(ZONE, "e2", "e1", 1), ChainEdge(ZONE, "e3", "e2", 0)]
    beside = [ChainEdge(ZONE, "e4", "e1", 0), ChainEdge(ZONE, "e5", "forgotten", 0), ChainEdge("other", "e3", None, 0)]
    assert find_orphaned([*beside, *reversed(line)]) == {(ZONE, "e2"), (ZONE, "e3")}
    assert find_orphaned([]) == set()


def test_of_two_ways_to_a_session_it_ends_with_the_second() -> None:
    left, right = graph_edge("a", "b"), graph_edge("a", "c")
    graph = falling(left, right, graph_edge("b", "d", left.id), graph_edge("c", "d", right.id))
    assert emptied(graph.revoke(ref(left), ends_sessions=True)) == ["b"]
    assert set(emptied(graph.revoke(ref(right), ends_sessions=True))) == {"c", "d"}


def test_what_has_fallen_does_not_fall_again_also_if_it_is_loaded_again() -> None:
    links = derived_chain(3)
    graph = falling(*links)
    graph.revoke(ref(links[0]), ends_sessions=True)
    graph.add_edges(links)
    again = graph.revoke(ref(links[0]), ends_sessions=True)
    assert (again.edges, again.ended_sessions) == ([], [])


def test_what_stands_under_an_ended_session_takes_its_own_edges_along() -> None:
    first = graph_edge("a", "b")
    graph = falling(first)
    fell = graph.revoke(ref(first), ends_sessions=True)
    of_child, held = graph_edge("child", "c"), graph_edge("x", "d")
    graph.add_edges([of_child, held, graph_edge("child", "d")])
    graph.end_sessions([(ZONE, "child")], fell)
    assert of_child.id in names(fell)
    assert set(emptied(fell)) == {"b", "c"}
    assert held.id not in names(fell)


@st.composite
def graphs(draw: st.DrawFn) -> list[GraphEdge]:
    """Acyclic, with parents as they can be: an edge into the source that was there before."""
    links: list[GraphEdge] = []
    for source, target in draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=25)):
        if source < target:
            into = [each.id for each in links if each.target_session_id == str(source)]
            parent = draw(st.sampled_from([None, *into]))
            links.append(graph_edge(str(source), str(target), parent))
    return links


@given(graphs(), st.data())
def test_a_fall_is_what_a_plain_reading_of_the_rules_gives(links: list[GraphEdge], data: st.DataObject) -> None:
    if not links:
        return
    first = data.draw(st.sampled_from(links))
    ends = data.draw(st.booleans())
    fell = falling(*links).revoke(ref(first), ends_sessions=ends)
    gone, ended = plainly(links, first, ends=ends)
    assert names(fell) == gone
    assert set(emptied(fell)) == ended
    assert len(fell.edges) == len(gone), "each once"


def plainly(links: Sequence[GraphEdge], first: GraphEdge, *, ends: bool) -> tuple[set[str], set[str]]:
    """Apply every sentence until nothing changes."""
    gone, ended = {first.id}, set[str]()
    while True:
        more = {each.id for each in links if each.parent_edge_id in gone}
        more |= {each.id for each in links if {each.source_session_id, each.target_session_id} & ended}
        left = {each.target_session_id for each in links if each.id not in gone | more}
        lost = {each.target_session_id for each in links if each.id in gone | more} - left if ends else set()
        if more <= gone and lost <= ended:
            return gone, ended
        gone |= more
        ended |= lost


# -- how far ahead -----------------------------------------------------------------------------------------------


def told(found: Iterable[tuple[int, bool, GraphEdge]]) -> list[tuple[int, bool, str]]:
    return [(level, derived, edge.id) for level, derived, edge in found]


def test_what_is_ahead_is_told_nearest_first_each_edge_once_with_its_level() -> None:
    first = graph_edge("a", "b", id="e0")
    near, far = graph_edge("b", "c", "e0", id="e1"), graph_edge("c", "d", "e1", id="e2")
    short_cut, parallel = graph_edge("b", "d", id="e3"), graph_edge("b", "c", "e0", id="e4")
    assert told(edges_by_level(first, [far, parallel, short_cut, near, first])) == [
        (0, True, "e0"),
        (1, True, "e1"),
        (1, False, "e3"),
        (1, True, "e4"),
        (2, True, "e2"),
    ]


def test_three_parallel_edges_over_ten_hops_are_thirty_edges_and_not_59_049_ways() -> None:
    links = [graph_edge(f"s{n}", f"s{n + 1}") for n in range(10) for _ in range(3)]
    found = edges_by_level(links[0], links)
    assert len(found) == 1 + 27
    assert max(level for level, _, _ in found) == 9
