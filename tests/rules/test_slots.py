"""What is to be thought of the slots that a board shows, by what the database says."""

from __future__ import annotations

import pytest

from quarterdeck.bus.redis.interfaces import Shown, Slot
from quarterdeck.engine.mirrors.slots import Use, Verdict, judge

USE = Use("z", live=7, expired=2, limit=10, pos=100)


@pytest.mark.parametrize(
    ("taken", "pos", "verdict"),
    [
        ("5", "100", Verdict.RIGHT),
        ("5", "90", Verdict.RIGHT),
        ("5", "101", Verdict.FOREIGN),
        ("9", "101", Verdict.FOREIGN),
        ("5", None, Verdict.DOUBTFUL),
        (None, None, Verdict.DOUBTFUL),
        (None, "100", Verdict.WRONG),
        ("4", "100", Verdict.WRONG),
        ("8", "100", Verdict.WRONG),
        ("-5", "100", Verdict.WRONG),
        ("lots", "100", Verdict.WRONG),
        ("5 ", "100", Verdict.WRONG),
        ("٥", "100", Verdict.WRONG),
        ("9" * 5_000, "100", Verdict.WRONG),
        ("4", "99", Verdict.DOUBTFUL),
        ("6", "100", Verdict.STALE),
        ("7", "60", Verdict.STALE),
        ("5", "-1", Verdict.DOUBTFUL),
        ("5", "9" * 30, Verdict.DOUBTFUL),
    ],
)
def test_the_board_is_believed_only_as_far_as_the_database_goes(
    taken: str | None, pos: str | None, verdict: Verdict
) -> None:
    assert judge(USE, Shown(taken, pos)) is verdict


def test_no_more_slots_are_taken_than_there_are_also_where_the_limit_was_lowered() -> None:
    lowered = Use("z", live=9, expired=0, limit=4, pos=1)
    assert lowered.taken == 4
    assert judge(lowered, Shown("4", "1")) is Verdict.RIGHT
    assert judge(lowered, Shown("9", "1")) is Verdict.WRONG


def test_a_count_that_a_hand_has_made_too_small_is_never_below_nothing() -> None:
    assert Use("z", live=1, expired=3, limit=4, pos=1).taken == 0


def test_what_is_written_bears_the_limit_and_the_position() -> None:
    assert USE.slot() == Slot("z", 5, 10, 100)
    assert USE.slot("777").overrules == "777"
