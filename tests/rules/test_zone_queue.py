"""Whose turn it is, and who is refused at the door."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from quarterdeck.engine.zone_queue import ZoneQueue


@dataclass(frozen=True)
class Ticket:
    zone_id: str
    position: int


def queue_of(zones: str, room: int = 10_000) -> tuple[ZoneQueue[Ticket], list[Ticket]]:
    """A queue with one ticket for each letter, a letter being a zone."""
    queue: ZoneQueue[Ticket] = ZoneQueue(room)
    tickets = [Ticket(zone, place) for place, zone in enumerate(zones, 1)]
    for ticket in tickets:
        assert queue.put(ticket) is None
    return queue, tickets


def letters(tickets: list[Ticket]) -> str:
    return "".join(ticket.zone_id for ticket in tickets)


def test_what_fits_into_one_batch_is_taken_whole_in_order_of_arrival() -> None:
    queue, tickets = queue_of("abacaba")
    assert queue.take(7) == tickets
    assert len(queue) == 0
    assert not queue.has_ready()
    assert queue.take(7) == []


def test_a_zone_with_a_thousand_waiting_delays_another_by_one_place() -> None:
    queue, tickets = queue_of("a" * 1_000 + "b")
    first = queue.take(2)
    assert first == [tickets[0], tickets[-1]]
    assert len(queue) == 999


def test_when_not_all_fit_zones_take_turns_and_each_keeps_its_own_order() -> None:
    queue, _ = queue_of("aaaaabbbc")
    batches = [queue.take(4), queue.take(4), queue.take(4)]
    assert [Counter(letters(batch)) for batch in batches] == [Counter("aabc"), Counter("aabb"), Counter("a")]
    served = [ticket for batch in batches for ticket in batch]
    for zone in "abc":
        own = [ticket.position for ticket in served if ticket.zone_id == zone]
        assert own == sorted(own)


def test_a_batch_too_small_for_all_zones_begins_where_the_last_one_stopped() -> None:
    queue, _ = queue_of("abcdeabcde")
    assert [letters(queue.take(3)) for _ in range(4)] == ["abc", "dea", "bcd", "e"]


def test_entries_that_could_not_be_served_stand_first_again() -> None:
    queue, tickets = queue_of("aabb")
    taken = queue.take(2)
    assert letters(taken) == "ab"
    queue.put_back(taken)
    assert len(queue) == 4
    assert queue.take(4) == tickets


def test_a_zone_that_was_busy_has_the_first_turn_of_the_next_batch() -> None:
    queue, tickets = queue_of("abcdef")
    taken = queue.take(2)
    queue.put_back(taken)
    assert queue.take(2) == taken == tickets[:2]


def test_what_has_been_let_in_is_taken_back_even_into_a_full_queue() -> None:
    queue, _ = queue_of("aaaa", room=4)
    taken = queue.take(2)
    assert queue.put(Ticket("a", 5)) is None
    assert queue.put(Ticket("a", 6)) is None
    queue.put_back(taken)
    assert len(queue) == 6
    assert [ticket.position for ticket in queue.take(10)] == [1, 2, 3, 4, 5, 6]


# -- holding


def test_a_held_zone_is_passed_over_until_it_is_released() -> None:
    queue, tickets = queue_of("abab")
    queue.pause_zone("a")
    assert letters(queue.take(10)) == "bb"
    assert not queue.has_ready()
    assert queue.take(10) == []
    assert len(queue) == 2
    queue.resume_zone("a")
    assert queue.has_ready()
    assert queue.take(10) == [tickets[0], tickets[2]]


def test_whoever_waits_for_a_held_zone_takes_its_entries_in_order_and_no_others() -> None:
    queue, tickets = queue_of("ababa")
    queue.pause_zone("a")
    assert queue.take_zone("a", 2) == [tickets[0], tickets[2]]
    assert queue.take_zone("a", 2) == [tickets[4]]
    assert queue.take_zone("a", 2) == []
    assert queue.take_zone("nobody", 2) == []
    assert len(queue) == 2


# -- at the door


def test_a_full_queue_refuses_the_newcomer_of_the_zone_that_fills_it() -> None:
    queue, _ = queue_of("aaaa", room=4)
    newcomer = Ticket("a", 5)
    assert queue.put(newcomer) is newcomer
    assert len(queue) == 4


def test_at_the_door_a_zone_with_less_than_its_share_takes_the_place_of_the_newest_of_the_zone_with_most() -> None:
    queue, tickets = queue_of("aaab", room=4)
    assert queue.put(Ticket("c", 5)) is tickets[2]
    assert len(queue) == 4
    assert letters(queue.take(10)) == "aabc"


def test_zones_of_equal_shares_do_not_push_each_other_out() -> None:
    queue, _ = queue_of("abab", room=4)
    for zone in "ab":
        newcomer = Ticket(zone, 9)
        assert queue.put(newcomer) is newcomer
    third = queue.put(Ticket("c", 10))
    assert third is not None
    assert third.zone_id in "ab", "a zone that has nothing waiting gets in"


def test_a_queue_with_room_for_one_refuses_the_second() -> None:
    queue, _ = queue_of("a", room=1)
    newcomer = Ticket("b", 2)
    assert queue.put(newcomer) is newcomer


@pytest.mark.parametrize("room", [1, 2, 7])
@given(zones=st.text("abcd", max_size=40), most=st.integers(1, 9))
def test_whatever_arrives_is_served_once_or_refused_once(room: int, zones: str, most: int) -> None:
    queue: ZoneQueue[Ticket] = ZoneQueue(room)
    refused: list[Ticket] = []
    served: list[Ticket] = []
    for place, zone in enumerate(zones):
        evicted = queue.put(Ticket(zone, place))
        refused += [evicted] if evicted else []
        assert len(queue) <= room
        if place % 5 == 4:
            taken = queue.take(most)
            assert len(taken) <= most
            queue.put_back(taken[:1])
            served += taken[1:]
    while queue.has_ready():
        served += queue.take(most)
    assert len(queue) == 0
    assert sorted(ticket.position for ticket in [*refused, *served]) == list(range(len(zones)))
