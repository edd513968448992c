"""The fair queue of zones: order, pausing, and eviction when it is full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from quarterdeck.engine.zone_queue import ZoneQueue


@dataclass(frozen=True)
class Entry:
    zone_id: str
    position: int


def queue_of(zones: str, capacity: int = 10_000) -> tuple[ZoneQueue[Entry], list[Entry]]:
    """A queue with one entry per letter. The letter is the zone."""
    queue: ZoneQueue[Entry] = ZoneQueue(capacity)
    entries = [Entry(zone, position) for position, zone in enumerate(zones, 1)]
    for entry in entries:
        assert queue.put(entry) is None
    return queue, entries


def zone_letters(entries: list[Entry]) -> str:
    return "".join(entry.zone_id for entry in entries)


def test_entries_that_fit_into_one_batch_are_taken_in_arrival_order() -> None:
    queue, entries = queue_of("abacaba")
    assert queue.take(7) == entries
    assert len(queue) == 0
    assert not queue.has_ready()
    assert queue.take(7) == []


def test_zone_with_a_thousand_entries_delays_another_by_one() -> None:
    queue, entries = queue_of("a" * 1_000 + "b")
    first = queue.take(2)
    assert first == [entries[0], entries[-1]]
    assert len(queue) == 999


def test_zones_alternate_when_not_all_fit_and_keep_their_own_order() -> None:
    queue, _ = queue_of("aaaaabbbc")
    batches = [queue.take(4), queue.take(4), queue.take(4)]
    assert [Counter(zone_letters(batch)) for batch in batches] == [Counter("aabc"), Counter("aabb"), Counter("a")]
    served = [entry for batch in batches for entry in batch]
    for zone in "abc":
        positions = [entry.position for entry in served if entry.zone_id == zone]
        assert positions == sorted(positions)


def test_batch_smaller_than_the_zones_continues_where_the_last_one_stopped() -> None:
    queue, _ = queue_of("abcdeabcde")
    assert [zone_letters(queue.take(3)) for _ in range(4)] == ["abc", "dea", "bcd", "e"]


def test_entries_put_back_are_first_again() -> None:
    queue, entries = queue_of("aabb")
    taken = queue.take(2)
    assert zone_letters(taken) == "ab"
    queue.put_back(taken)
    assert len(queue) == 4
    assert queue.take(4) == entries


def test_zone_with_entries_put_back_is_served_first_in_the_next_batch() -> None:
    queue, entries = queue_of("abcdef")
    taken = queue.take(2)
    queue.put_back(taken)
    assert queue.take(2) == taken == entries[:2]


def test_entries_can_be_put_back_into_a_full_queue() -> None:
    queue, _ = queue_of("aaaa", capacity=4)
    taken = queue.take(2)
    assert queue.put(Entry("a", 5)) is None
    assert queue.put(Entry("a", 6)) is None
    queue.put_back(taken)
    assert len(queue) == 6
    assert [entry.position for entry in queue.take(10)] == [1, 2, 3, 4, 5, 6]


# -- pausing


def test_paused_zone_is_skipped_until_it_is_resumed() -> None:
    queue, entries = queue_of("abab")
    queue.pause_zone("a")
    assert zone_letters(queue.take(10)) == "bb"
    assert not queue.has_ready()
    assert queue.take(10) == []
    assert len(queue) == 2
    queue.resume_zone("a")
    assert queue.has_ready()
    assert queue.take(10) == [entries[0], entries[2]]


def test_take_zone_returns_only_entries_of_the_paused_zone_in_order() -> None:
    queue, entries = queue_of("ababa")
    queue.pause_zone("a")
    assert queue.take_zone("a", 2) == [entries[0], entries[2]]
    assert queue.take_zone("a", 2) == [entries[4]]
    assert queue.take_zone("a", 2) == []
    assert queue.take_zone("unknown", 2) == []
    assert len(queue) == 2


# -- a full queue


def test_full_queue_refuses_a_new_entry_of_the_zone_that_fills_it() -> None:
    queue, _ = queue_of("aaaa", capacity=4)
    new_entry = Entry("a", 5)
    assert queue.put(new_entry) is new_entry
    assert len(queue) == 4


def test_zone_below_its_share_evicts_the_newest_entry_of_the_largest_zone() -> None:
    queue, entries = queue_of("aaab", capacity=4)
    assert queue.put(Entry("c", 5)) is entries[2]
    assert len(queue) == 4
    assert zone_letters(queue.take(10)) == "aabc"


def test_zones_with_equal_shares_do_not_evict_each_other() -> None:
    queue, _ = queue_of("abab", capacity=4)
    for zone in "ab":
        new_entry = Entry(zone, 9)
        assert queue.put(new_entry) is new_entry
    third = queue.put(Entry("c", 10))
    assert third is not None
    assert third.zone_id in "ab", "a zone with an empty queue is admitted"


def test_queue_of_capacity_one_refuses_the_second_entry() -> None:
    queue, _ = queue_of("a", capacity=1)
    new_entry = Entry("b", 2)
    assert queue.put(new_entry) is new_entry


@pytest.mark.parametrize("capacity", [1, 2, 7])
@given(zones=st.text("abcd", max_size=40), limit=st.integers(1, 9))
def test_every_entry_is_served_once_or_refused_once(capacity: int, zones: str, limit: int) -> None:
    queue: ZoneQueue[Entry] = ZoneQueue(capacity)
    refused: list[Entry] = []
    served: list[Entry] = []
    for position, zone in enumerate(zones):
        evicted = queue.put(Entry(zone, position))
        refused += [evicted] if evicted else []
        assert len(queue) <= capacity
        if position % 5 == 4:
            taken = queue.take(limit)
            assert len(taken) <= limit
            queue.put_back(taken[:1])
            served += taken[1:]
    while queue.has_ready():
        served += queue.take(limit)
    assert len(queue) == 0
    assert sorted(entry.position for entry in [*refused, *served]) == list(range(len(zones)))
