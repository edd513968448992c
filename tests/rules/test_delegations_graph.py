"""The graph, the pure part: cycles, what falls with an edge, and how far ahead things are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.domain.delegations.model import Link
from quarterdeck.domain.delegations.rules import Falling, Fell, Reach, levels
from quarterdeck.domain.delegations.rules.lives import REQUESTED, WITH_PARENT, WITH_SESSION, Ref
from tests.support.asking import NOW, ZONE
from tests.support.lending import link


def falling(*links: Link) -> Falling:
    made = Falling(NOW)
    made.know(links)
    return made


def ref(edge: Link) -> Ref:
    return edge.zone_id, edge.id


def names(fell: Fell) -> set[str]:
    return {edge.id for edge, _ in fell.edges}


def emptied(fell: Fell) -> list[str]:
    return [session for _, session in fell.emptied]


def derived_chain(number: int) -> list[Link]:
    """From s0 on, each derived from the one before."""
    links: list[Link] = []
    for n in range(number):
        links.append(link(f"s{n}", f"s{n + 1}", links[-1].id if links else None))
    return links


# -- cycles ------------------------------------------------------------------------------------------------------


def test_a_way_is_found_however_long_it_is_and_only_along_the_arrows() -> None:
    reach = Reach([(ZONE, f"s{n}", f"s{n + 1}") for n in range(5_000)])
    assert reach.leads(ZONE, "s0", "s5000")
    assert not reach.leads(ZONE, "s5000", "s0")
    assert not reach.leads("another zone", "s0", "s5000")


def test_a_walk_costs_as_much_as_there_are_edges_and_not_as_there_are_ways() -> None:
    # 40 layers of 3: there are 3**40 ways through, and somebody who enumerated them would never return.
    layers = [[f"l{n}.{k}" for k in range(3)] for n in range(40)]
    pairs = [(ZONE, a, b) for one, other in itertools.pairwise(layers) for a in one for b in other]
    reach = Reach([*pairs, (ZONE, "elsewhere", "goal")])
    assert not reach.leads(ZONE, "l0.0", "goal")
    assert reach.leads(ZONE, "l0.0", "l39.2")


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=30))
def test_whoever_asks_before_each_edge_never_closes_a_cycle(wished: list[tuple[int, int]]) -> None:
    reach, made = Reach(), list[tuple[int, int]]()
    for source, target in wished:
        if source != target and not reach.leads(ZONE, str(target), str(source)):
            reach.add(ZONE, str(source), str(target))
            made.append((source, target))
    remaining = {*made}
    while leaves := {edge for edge in remaining if not any(edge[1] == other[0] for other in remaining)}:
        remaining -= leaves
    assert not remaining, "what cannot be taken apart leaf by leaf has a cycle in it"


# -- what falls --------------------------------------------------------------------------------------------------


def test_the_head_of_a_chain_takes_all_of_it_and_ends_everybody_but_the_first() -> None:
    links = derived_chain(11)
    fell = falling(*links).revoke(ref(links[0]), ends=True)
    assert names(fell) == {each.id for each in links}
    assert set(emptied(fell)) == {f"s{n}" for n in range(1, 12)}
    assert {each.id: reason for each, reason in fell.edges} == {
        links[0].id: REQUESTED,
        **{each.id: WITH_PARENT for each in links[1:]},
    }


def test_a_chain_of_edges_that_are_not_derived_falls_session_by_session() -> None:
    links = [link(f"s{n}", f"s{n + 1}") for n in range(11)]
    fell = falling(*links).revoke(ref(links[0]), ends=True)
    assert set(emptied(fell)) == {f"s{n}" for n in range(1, 12)}
    assert {reason for _, reason in fell.edges} == {REQUESTED, WITH_SESSION}


def test_whoever_keeps_sessions_loses_the_derived_edges_alone() -> None:
    first, second = link("a", "b"), link("b", "c")
    third = link("b", "d", first.id)
    fell = falling(first, second, third).revoke(ref(first), ends=False)
    assert names(fell) == {first.id, third.id}
    assert emptied(fell) == []


def test_a_session_that_another_edge_leads_to_is_not_ended() -> None:
    first, other = link("a", "b"), link("z", "b")
    behind = link("b", "c", first.id)
    fell = falling(first, other, behind).revoke(ref(first), ends=True)
    assert names(fell) == {first.id, behind.id}
    assert emptied(fell) == ["c"]


def test_an_edge_past_its_time_holds_nobody() -> None:
    first, over = link("a", "b"), link("z", "b", expires_at=NOW)
    graph = falling(first, over)
    assert emptied(graph.revoke(ref(first), ends=True)) == ["b"]
    assert names(graph.revoke(ref(over), ends=True)) == set(), "and is not revoked: it has expired"


def test_of_two_ways_to_a_session_it_ends_with_the_second() -> None:
    left, right = link("a", "b"), link("a", "c")
    graph = falling(left, right, link("b", "d", left.id), link("c", "d", right.id))
    assert emptied(graph.revoke(ref(left), ends=True)) == ["b"]
    assert set(emptied(graph.revoke(ref(right), ends=True))) == {"c", "d"}


def test_what_has_fallen_does_not_fall_again_also_if_it_is_loaded_again() -> None:
    links = derived_chain(3)
    graph = falling(*links)
    graph.revoke(ref(links[0]), ends=True)
    graph.know(links)
    again = graph.revoke(ref(links[0]), ends=True)
    assert (again.edges, again.emptied) == ([], [])


def test_what_stands_under_an_ended_session_takes_its_own_edges_along() -> None:
    first = link("a", "b")
    graph = falling(first)
    fell = graph.revoke(ref(first), ends=True)
    of_child, held = link("child", "c"), link("x", "d")
    graph.know([of_child, held, link("child", "d")])
    graph.end([(ZONE, "child")], fell)
    assert of_child.id in names(fell)
    assert set(emptied(fell)) == {"b", "c"}
    assert held.id not in names(fell)


@st.composite
def graphs(draw: st.DrawFn) -> list[Link]:
    """Acyclic, with parents as they can be: an edge into the source that was there before."""
    links: list[Link] = []
    for source, target in draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=25)):
        if source < target:
            into = [each.id for each in links if each.target_session_id == str(source)]
            parent = draw(st.sampled_from([None, *into]))
            links.append(link(str(source), str(target), parent))
    return links


@given(graphs(), st.data())
def test_a_fall_is_what_a_plain_reading_of_the_rules_gives(links: list[Link], data: st.DataObject) -> None:
    if not links:
        return
    first = data.draw(st.sampled_from(links))
    ends = data.draw(st.booleans())
    fell = falling(*links).revoke(ref(first), ends=ends)
    gone, ended = plainly(links, first, ends=ends)
    assert names(fell) == gone
    assert set(emptied(fell)) == ended
    assert len(fell.edges) == len(gone), "each once"


def plainly(links: Sequence[Link], first: Link, *, ends: bool) -> tuple[set[str], set[str]]:
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


def told(found: Iterable[tuple[int, bool, Link]]) -> list[tuple[int, bool, str]]:
    return [(level, derived, edge.id) for level, derived, edge in found]


def test_what_is_ahead_is_told_nearest_first_each_edge_once_with_its_level() -> None:
    first = link("a", "b", id="e0")
    near, far = link("b", "c", "e0", id="e1"), link("c", "d", "e1", id="e2")
    short_cut, parallel = link("b", "d", id="e3"), link("b", "c", "e0", id="e4")
    assert told(levels(first, [far, parallel, short_cut, near, first])) == [
        (0, True, "e0"),
        (1, True, "e1"),
        (1, False, "e3"),
        (1, True, "e4"),
        (2, True, "e2"),
    ]


def test_three_parallel_edges_over_ten_hops_are_thirty_edges_and_not_59_049_ways() -> None:
    links = [link(f"s{n}", f"s{n + 1}") for n in range(10) for _ in range(3)]
    found = levels(links[0], links)
    assert len(found) == 1 + 27
    assert max(level for level, _, _ in found) == 9
