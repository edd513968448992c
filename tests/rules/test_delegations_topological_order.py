"""The order of a zone, the pure part: no cycle is let in, none is seen where there is none, and little is looked at."""

from __future__ import annotations

import itertools

from hypothesis import given, settings, strategies as st

from quarterdeck.domain.delegations.rules.topological_order import (
    FIRST_WALK_LIMIT,
    RANK_GAP,
    RANK_LIMIT,
    TopologicalOrder,
    spaced_ranks,
    topological_sort,
)
from tests.support.builders import ZONE
from tests.support.delegations import InMemoryGraph


def lent(graph: InMemoryGraph, source: str, target: str, order: TopologicalOrder | None = None) -> bool:
    """Whether the edge was made. Each is a batch of its own, unless an order is handed on."""
    order = order or graph.new_order()
    while lack := order.missing_input(ZONE, source, target):
        graph.apply(order, [])
        graph.resolve_missing(order, lack)
    if order.closes_cycle(ZONE, source, target):
        return False
    order.add_edge(ZONE, source, target)
    graph.apply(order, [(source, target)])
    return True


def line(number: int) -> InMemoryGraph:
    graph = InMemoryGraph()
    for n in range(number):
        assert lent(graph, f"s{n}", f"s{n + 1}")
    return graph


# -- cycles ------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["lend", "lend", "lend", "end", "leave"])),
    max_size=60,
)


@settings(max_examples=300)
@given(steps, st.booleans(), st.sampled_from([2, 64]))
def test_an_edge_is_refused_exactly_if_a_plain_walk_finds_a_way_back(
    wished: list[tuple[int, int, str]], as_one_batch: bool, gap: int
) -> None:
    graph = InMemoryGraph()
    order = graph.new_order()
    for one, other, what in wished:
        source, target = str(one), str(other)
        if what == "end" and graph.pairs:
            graph.pairs.pop(one % len(graph.pairs))
        elif what == "leave":
            # A session ends: its edges are over, and its rank is free.
            graph.pairs = [pair for pair in graph.pairs if source not in pair]
            graph.ranks.pop(source, None)
            order = squeezed(graph, gap)
        elif source != target:
            closes = source in graph.walk_forward(target)
            order = order if as_one_batch and what == "lend" else squeezed(graph, gap)
            assert lent(graph, source, target, order) is not closes
        if what == "end":
            order = squeezed(graph, gap)
        assert graph.is_topological(), graph.ranks


def squeezed(graph: InMemoryGraph, gap: int) -> TopologicalOrder:
    """The next batch's order, in a zone where there is hardly any room."""
    everybody = sorted(graph.ranks, key=lambda each: graph.ranks[each])
    graph.ranks = {each: place * gap for place, each in enumerate(everybody)}
    return graph.new_order()


def test_of_a_long_line_neither_end_is_walked_to_be_made_longer() -> None:
    graph = line(500)
    assert lent(graph, "before", "s0")
    assert lent(graph, "s500", "after")
    assert lent(graph, "s3", "s400")
    assert graph.walk_sizes == []
    assert not lent(graph, "s500", "s0")
    assert graph.is_topological()


def test_ten_thousand_appended_at_both_ends_need_no_look_and_stay_within_bounds() -> None:
    order = TopologicalOrder({}, {})
    names = [str(n) for n in range(-10_000, 10_001)]
    for n in range(10_000):
        for source, target in ((names[10_000 + n], names[10_001 + n]), (names[9_999 - n], names[10_000 - n])):
            assert order.missing_input(ZONE, source, target) is None
            order.add_edge(ZONE, source, target)
    ranks = {session: rank for _, session, rank in order.take_changes()}
    assert sorted(ranks, key=lambda each: ranks[each]) == names
    assert max(map(abs, ranks.values())) < RANK_LIMIT


def test_a_walk_goes_on_until_one_side_is_known_whole_and_moves_the_smaller() -> None:
    graph = line(200)
    for n in range(200):
        assert lent(graph, f"t{n}", f"t{n + 1}")
    graph.walk_sizes.clear()
    before = dict(graph.ranks)
    # The second line stands above the first. Ahead of s0 are 201, behind t4 are five.
    assert lent(graph, "t4", "s0")
    assert graph.walk_sizes == [FIRST_WALK_LIMIT + 5]
    moved = {each for each, rank in graph.ranks.items() if before[each] != rank}
    assert moved == {f"t{n}" for n in range(5)}
    graph.walk_sizes.clear()
    assert not lent(graph, "s200", "t0"), "and now there is a way over both"
    assert graph.walk_sizes == [128, 206 + 206], "both sides were longer than the first look: the second went further"
    assert graph.is_topological()


def test_of_two_sides_that_are_known_whole_the_smaller_moves() -> None:
    for pair, movers in ((("t4", "s6"), {"s6", "s7", "s8", "s9"}), (("t1", "s0"), {"t0", "t1"})):
        graph = line(9)
        for n in range(9):
            assert lent(graph, f"t{n}", f"t{n + 1}")
        before = dict(graph.ranks)
        assert lent(graph, *pair)
        assert {each for each, rank in graph.ranks.items() if before[each] != rank} == movers


def test_what_is_found_in_a_part_of_a_side_is_a_cycle_also_if_the_rest_is_not_known() -> None:
    graph = InMemoryGraph()
    for n in range(300):
        assert lent(graph, "s", f"t{n}")
    assert not lent(graph, "t7", "s")
    assert len(graph.walk_sizes) == 1


# -- room --------------------------------------------------------------------------------------------------------


def test_many_who_come_to_one_place_find_room_there() -> None:
    # A lead lends to workers, each of whom lends to one who was there before them: always against the order.
    graph = InMemoryGraph()
    assert lent(graph, "lead", "collector")
    assert lent(graph, "collector", "last")
    for n in range(200):
        assert lent(graph, "lead", f"w{n}")
        assert lent(graph, f"w{n}", "collector")
    assert graph.respace_count == 0
    assert graph.is_topological()


def test_where_no_room_is_left_the_zone_is_spaced_anew_and_keeps_its_order() -> None:
    graph = InMemoryGraph({(ZONE, name): place for place, name in enumerate("abcdefgh")}, [("a", "b"), ("g", "h")])
    assert lent(graph, "g", "b")
    assert (graph.respace_count, graph.is_topological()) == (1, True)
    for source, target in itertools.combinations("hgfedcba", 2):
        lent(graph, source, target)
        assert graph.is_topological()
    assert graph.respace_count == 1


def test_a_zone_that_has_come_too_far_is_spaced_anew_before_its_ranks_run_out() -> None:
    for end in (RANK_LIMIT + 1, -RANK_LIMIT - 1):
        graph = InMemoryGraph({(ZONE, "a"): end, (ZONE, "b"): end + RANK_GAP}, [("a", "b")])
        assert lent(graph, "b", "c")
        assert graph.respace_count == 1
        assert max(map(abs, graph.ranks.values())) <= 4 * RANK_GAP
        assert graph.is_topological()


@given(st.integers(1, 50), st.integers(-RANK_LIMIT, RANK_LIMIT), st.integers(0, RANK_LIMIT))
def test_new_ranks_never_meet_those_they_replace(number: int, lowest: int, length: int) -> None:
    highest = min(lowest + length, RANK_LIMIT + RANK_GAP)
    ranks = spaced_ranks(number, lowest, highest)
    assert ranks == sorted({*ranks})
    assert not any(lowest <= rank <= highest for rank in ranks)
    assert max(map(abs, ranks)) < 2**62


def test_what_moves_leaves_room_for_the_next() -> None:
    # Ahead of the target is more than is looked at first, so it is each of the sources that moves, to just below it.
    graph = InMemoryGraph()
    for pair in [("lead", "target"), *(("target", f"t{n}") for n in range(FIRST_WALK_LIMIT))]:
        assert lent(graph, *pair)
    for n in range(300):
        assert lent(graph, "lead", f"s{n}")
        assert lent(graph, f"s{n}", "target")
    assert graph.respace_count == 0, "halving the gap would have used it up after 32"
    assert graph.is_topological()


# -- a zone as a whole -------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40))
def test_a_graph_without_an_order_is_put_in_one(wished: list[tuple[int, int]]) -> None:
    pairs = [(str(low), str(high)) for low, high in wished if low < high]
    places = {session: place for place, session in enumerate(topological_sort(pairs))}
    assert places.keys() == {session for pair in pairs for session in pair}
    assert all(places[source] < places[target] for source, target in pairs)


def test_what_a_hand_has_closed_to_a_cycle_is_put_last_and_nothing_is_lost() -> None:
    assert topological_sort([("a", "b"), ("b", "c"), ("c", "b"), ("a", "d")]) == ["a", "d", "b", "c"]
