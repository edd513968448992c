"""The topological order of a zone: it refuses exactly the edges that close a cycle, and walks little of the graph."""

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


def add_edge(graph: InMemoryGraph, source: str, target: str, order: TopologicalOrder | None = None) -> bool:
    """Add an edge and return whether it was accepted. Without an order, each edge is its own batch."""
    order = order or graph.new_order()
    while request := order.next_request(ZONE, source, target):
        graph.apply(order, [])
        graph.run_request(order, request)
    if order.closes_cycle(ZONE, source, target):
        return False
    order.add_edge(ZONE, source, target)
    graph.apply(order, [(source, target)])
    return True


def chain(number: int) -> InMemoryGraph:
    graph = InMemoryGraph()
    for n in range(number):
        assert add_edge(graph, f"s{n}", f"s{n + 1}")
    return graph


# -- cycles ------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["add", "add", "add", "end_edge", "end_session"])),
    max_size=60,
)


@settings(max_examples=300)
@given(steps, st.booleans(), st.sampled_from([2, 64]))
def test_edge_is_refused_exactly_if_a_full_walk_finds_a_path_back(
    requests: list[tuple[int, int, str]], as_one_batch: bool, gap: int
) -> None:
    graph = InMemoryGraph()
    order = graph.new_order()
    for source_number, target_number, action in requests:
        source, target = str(source_number), str(target_number)
        if action == "end_edge" and graph.pairs:
            graph.pairs.pop(source_number % len(graph.pairs))
        elif action == "end_session":
            # A session ends: its edges end, and its rank becomes free.
            graph.pairs = [pair for pair in graph.pairs if source not in pair]
            graph.ranks.pop(source, None)
            order = next_order_with_gap(graph, gap)
        elif source != target:
            closes_cycle = source in graph.walk_forward(target)
            order = order if as_one_batch and action == "add" else next_order_with_gap(graph, gap)
            assert add_edge(graph, source, target, order) is not closes_cycle
        if action == "end_edge":
            order = next_order_with_gap(graph, gap)
        assert graph.is_topological(), graph.ranks


def next_order_with_gap(graph: InMemoryGraph, gap: int) -> TopologicalOrder:
    """The order of the next batch, after respacing the ranks with a small gap."""
    ordered = sorted(graph.ranks, key=lambda session_id: graph.ranks[session_id])
    graph.ranks = {session_id: index * gap for index, session_id in enumerate(ordered)}
    return graph.new_order()


def test_extending_a_long_chain_at_either_end_needs_no_walk() -> None:
    graph = chain(500)
    assert add_edge(graph, "before", "s0")
    assert add_edge(graph, "s500", "after")
    assert add_edge(graph, "s3", "s400")
    assert graph.walk_sizes == []
    assert not add_edge(graph, "s500", "s0")
    assert graph.is_topological()


def test_10_000_edges_at_both_ends_need_no_walk_and_stay_within_the_rank_limit() -> None:
    order = TopologicalOrder({}, {})
    names = [str(n) for n in range(-10_000, 10_001)]
    for n in range(10_000):
        for source, target in ((names[10_000 + n], names[10_001 + n]), (names[9_999 - n], names[10_000 - n])):
            assert order.next_request(ZONE, source, target) is None
            order.add_edge(ZONE, source, target)
    ranks = {session: rank for _, session, rank in order.take_changes()}
    assert sorted(ranks, key=lambda session_id: ranks[session_id]) == names
    assert max(map(abs, ranks.values())) < RANK_LIMIT


def test_walk_continues_until_one_side_is_complete_and_moves_that_side() -> None:
    graph = chain(200)
    for n in range(200):
        assert add_edge(graph, f"t{n}", f"t{n + 1}")
    graph.walk_sizes.clear()
    before = dict(graph.ranks)
    # The ranks of the second chain are above the first. Forward of s0 are 201 sessions, backward of t4 are five.
    assert add_edge(graph, "t4", "s0")
    assert graph.walk_sizes == [FIRST_WALK_LIMIT + 5]
    moved_ids = {session_id for session_id, rank in graph.ranks.items() if before[session_id] != rank}
    assert moved_ids == {f"t{n}" for n in range(5)}
    graph.walk_sizes.clear()
    assert not add_edge(graph, "s200", "t0"), "a path over both chains exists"
    assert graph.walk_sizes == [128, 206 + 206], "both sides exceed the first walk limit, so a second walk follows"
    assert graph.is_topological()


def test_smaller_of_two_complete_sides_is_moved() -> None:
    for pair, expected in ((("t4", "s6"), {"s6", "s7", "s8", "s9"}), (("t1", "s0"), {"t0", "t1"})):
        graph = chain(9)
        for n in range(9):
            assert add_edge(graph, f"t{n}", f"t{n + 1}")
        before = dict(graph.ranks)
        assert add_edge(graph, *pair)
        assert {session_id for session_id, rank in graph.ranks.items() if before[session_id] != rank} == expected


def test_cycle_found_in_an_incomplete_walk_is_refused() -> None:
    graph = InMemoryGraph()
    for n in range(300):
        assert add_edge(graph, "s", f"t{n}")
    assert not add_edge(graph, "t7", "s")
    assert len(graph.walk_sizes) == 1


# -- ranks -------------------------------------------------------------------------------------------------------


def test_many_insertions_at_one_position_need_no_respacing() -> None:
    # A lead lends to workers, and each worker to an older session. Each such edge is against the order.
    graph = InMemoryGraph()
    assert add_edge(graph, "lead", "collector")
    assert add_edge(graph, "collector", "last")
    for n in range(200):
        assert add_edge(graph, "lead", f"w{n}")
        assert add_edge(graph, f"w{n}", "collector")
    assert graph.respace_count == 0
    assert graph.is_topological()


def test_zone_without_free_ranks_is_respaced_and_keeps_its_order() -> None:
    graph = InMemoryGraph({(ZONE, name): rank for rank, name in enumerate("abcdefgh")}, [("a", "b"), ("g", "h")])
    assert add_edge(graph, "g", "b")
    assert (graph.respace_count, graph.is_topological()) == (1, True)
    for source, target in itertools.combinations("hgfedcba", 2):
        add_edge(graph, source, target)
        assert graph.is_topological()
    assert graph.respace_count == 1


def test_zone_beyond_the_rank_limit_is_respaced() -> None:
    for lowest in (RANK_LIMIT + 1, -RANK_LIMIT - 1):
        graph = InMemoryGraph({(ZONE, "a"): lowest, (ZONE, "b"): lowest + RANK_GAP}, [("a", "b")])
        assert add_edge(graph, "b", "c")
        assert graph.respace_count == 1
        assert max(map(abs, graph.ranks.values())) <= 4 * RANK_GAP
        assert graph.is_topological()


@given(st.integers(1, 50), st.integers(-RANK_LIMIT, RANK_LIMIT), st.integers(0, RANK_LIMIT))
def test_new_ranks_never_overlap_the_replaced_ones(number: int, lowest: int, length: int) -> None:
    highest = min(lowest + length, RANK_LIMIT + RANK_GAP)
    ranks = spaced_ranks(number, lowest, highest)
    assert ranks == sorted({*ranks})
    assert not any(lowest <= rank <= highest for rank in ranks)
    assert max(map(abs, ranks)) < 2**62


def test_moved_sources_leave_free_ranks_for_later_ones() -> None:
    # Forward of the target is more than the first walk covers. So each source is moved, to just below the target.
    graph = InMemoryGraph()
    for pair in [("lead", "target"), *(("target", f"t{n}") for n in range(FIRST_WALK_LIMIT))]:
        assert add_edge(graph, *pair)
    for n in range(300):
        assert add_edge(graph, "lead", f"s{n}")
        assert add_edge(graph, f"s{n}", "target")
    assert graph.respace_count == 0, "halving the gap would have used up the ranks after 32"
    assert graph.is_topological()


# -- sorting a complete zone -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40))
def test_topological_sort_orders_every_edge_of_an_acyclic_graph(requests: list[tuple[int, int]]) -> None:
    pairs = [(str(low), str(high)) for low, high in requests if low < high]
    positions = {session: position for position, session in enumerate(topological_sort(pairs))}
    assert positions.keys() == {session for pair in pairs for session in pair}
    assert all(positions[source] < positions[target] for source, target in pairs)


def test_topological_sort_puts_cycles_last_and_loses_no_session() -> None:
    assert topological_sort([("a", "b"), ("b", "c"), ("c", "b"), ("a", "d")]) == ["a", "d", "b", "c"]
