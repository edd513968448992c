"""Comparison of the slot counters in Redis with the database."""

from __future__ import annotations

import pytest

from quarterdeck.bus.redis.interfaces import SlotCounter, StoredSlotCounter
from quarterdeck.engine.mirrors.slots import SlotComparison, SlotUsage, compare

USAGE = SlotUsage("z", live=7, expired=2, limit=10, pos=100)


@pytest.mark.parametrize(
    ("taken", "pos", "expected"),
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
        ("6", "100", SlotComparison.OUTDATED),
        ("7", "60", SlotComparison.OUTDATED),
        ("5", "-1", SlotComparison.UNCERTAIN),
        ("5", "9" * 30, SlotComparison.UNCERTAIN),
    ],
)
def test_stored_counter_is_compared_up_to_the_position_of_the_database(
    taken: str | None, pos: str | None, expected: SlotComparison
) -> None:
    assert compare(USAGE, StoredSlotCounter(taken, pos)) is expected


def test_taken_slots_never_exceed_a_lowered_limit() -> None:
    lowered = SlotUsage("z", live=9, expired=0, limit=4, pos=1)
    assert lowered.taken == 4
    assert compare(lowered, StoredSlotCounter("4", "1")) is SlotComparison.MATCH
    assert compare(lowered, StoredSlotCounter("9", "1")) is SlotComparison.MISMATCH


def test_taken_slots_are_never_negative() -> None:
    assert SlotUsage("z", live=1, expired=3, limit=4, pos=1).taken == 0


def test_counter_contains_the_limit_and_the_position() -> None:
    assert USAGE.to_counter() == SlotCounter("z", 5, 10, 100)
    assert USAGE.to_counter("777").replaces_pos == "777"
