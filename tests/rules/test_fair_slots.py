"""Who may be called how often at once."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.fair_slots import FairSlots, SlotLimits


def test_one_who_is_called_and_a_zone_have_only_so_many_slots_and_leave_the_rest_to_others() -> None:
    shares = FairSlots(SlotLimits(10, 6, 4))
    one, two, other = ("z", "one"), ("z", "two"), ("y", "one")
    shares.acquire(one, 4)
    assert [*shares.full_targets()] == [one]
    assert (shares.available(one), shares.available(two), shares.available(other)) == (0, 2, 4)
    shares.acquire(two, 2)
    assert [*shares.full_zones()] == ["z"]
    shares.acquire(other, 4)
    assert shares.is_full()
    assert shares.available(("x", "one")) == 0
    shares.release(one, 1)
    assert (shares.available(one), shares.available(two), shares.available(("x", "one"))) == (1, 1, 1)
    with pytest.raises(ValueError, match="taken"):
        shares.acquire(one, 2)
    with pytest.raises(ValueError, match="given back"):
        shares.release(two, 3)


@given(st.lists(st.tuples(st.sampled_from("zy"), st.sampled_from("ab"), st.integers(1, 5), st.booleans())))
def test_no_bound_is_ever_exceeded_and_everything_given_back_is_free_again(
    steps: list[tuple[str, str, int, bool]],
) -> None:
    shares, held = FairSlots(SlotLimits(7, 5, 3)), dict[tuple[str, str], int]()
    for zone, name, number, takes in steps:
        ref = (zone, name)
        moved = min(number, shares.available(ref) if takes else held.get(ref, 0))
        (shares.acquire if takes else shares.release)(ref, moved)
        held[ref] = held.get(ref, 0) + (moved if takes else -moved)
        assert len(shares) == sum(held.values()) <= 7
        assert all(n <= 3 for n in held.values())
        assert all(sum(n for (z, _), n in held.items() if z == zone) <= 5 for zone in "zy")
    for ref, number in held.items():
        shares.release(ref, number)
    assert len(shares) == 0
    assert shares.available(("z", "a")) == 3
