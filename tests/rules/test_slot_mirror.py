"""What is to be thought of the slots that a board shows, by what the database says."""

from __future__ import annotations

import pytest

from quarterdeck.bus.redis.interfaces import SlotCounter, StoredSlotCounter
from quarterdeck.engine.mirrors.slots import SlotComparison, SlotUsage, compare

USE = SlotUsage("z", live=7, expired=2, limit=10, pos=100)


@pytest.mark.parametrize(
    ("taken", "pos", "verdict"),
    [
        ("5", "100", SlotComparison.MATCH),
        ("5", "90", SlotComparison.MATCH),
        ("5", "101", SlotComparison.UNKNOWN_POSITION),
        ("9", "101", SlotComparison.UNKNOWN_POSITION),
        ("5", None, SlotComparison.UNCERTAIN),
        (None, None, SlotComparison.UNCERTAIN),
        (None, "100", SlotComparison.MISMATCH),
        ("4", "100", SlotComparison.MISMATCH),
        ("8", "100", SlotComparison.MISMATCH),
        ("-5", "100", SlotComparison.MISMATCH),
        ("lots", "100", SlotComparison.MISMATCH),
        ("5 ", "100", SlotComparison.MISMATCH),
        ("٥", "100", SlotComparison.MISMATCH),
        ("9" * 5_000, "100", SlotComparison.MISMATCH),
        ("4", "99", SlotComparison.UNCERTAIN),
        ("6", "100", SlotComparison.STALE),
        ("7", "60", SlotComparison.STALE),
        ("5", "-1", SlotComparison.UNCERTAIN),
        ("5", "9" * 30, SlotComparison.UNCERTAIN),
    ],
)
def test_the_board_is_believed_only_as_far_as_the_database_goes(
    taken: str | None, pos: str | None, verdict: SlotComparison
) -> None:
    assert compare(USE, StoredSlotCounter(taken, pos)) is verdict


def test_no_more_slots_are_taken_than_there_are_also_where_the_limit_was_lowered() -> None:
    lowered = SlotUsage("z", live=9, expired=0, limit=4, pos=1)
    assert lowered.taken == 4
    assert compare(lowered, StoredSlotCounter("4", "1")) is SlotComparison.MATCH
    assert compare(lowered, StoredSlotCounter("9", "1")) is SlotComparison.MISMATCH


def test_a_count_that_a_hand_has_made_too_small_is_never_below_nothing() -> None:
    assert SlotUsage("z", live=1, expired=3, limit=4, pos=1).taken == 0


def test_what_is_written_bears_the_limit_and_the_position() -> None:
    assert USE.to_counter() == SlotCounter("z", 5, 10, 100)
    assert USE.to_counter("777").replaces_pos == "777"
