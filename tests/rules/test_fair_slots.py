"""Fair slots: limits in total, per zone and per target."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.fair_slots import FairSlots, SlotLimits


def test_targets_and_zones_are_limited_and_leave_slots_for_others() -> None:
    slots = FairSlots(SlotLimits(10, 6, 4))
    one, two, other = ("z", "one"), ("z", "two"), ("y", "one")
    slots.acquire(one, 4)
    assert [*slots.full_targets()] == [one]
    assert (slots.available(one), slots.available(two), slots.available(other)) == (0, 2, 4)
    slots.acquire(two, 2)
    assert [*slots.full_zones()] == ["z"]
    slots.acquire(other, 4)
    assert slots.is_full()
    assert slots.available(("x", "one")) == 0
    slots.release(one, 1)
    assert (slots.available(one), slots.available(two), slots.available(("x", "one"))) == (1, 1, 1)
    with pytest.raises(ValueError, match="more slots acquired"):
        slots.acquire(one, 2)
    with pytest.raises(ValueError, match="more slots released"):
        slots.release(two, 3)


@given(st.lists(st.tuples(st.sampled_from("zy"), st.sampled_from("ab"), st.integers(1, 5), st.booleans())))
def test_no_limit_is_exceeded_and_released_slots_are_available_again(steps: list[tuple[str, str, int, bool]]) -> None:
    slots, held = FairSlots(SlotLimits(7, 5, 3)), dict[tuple[str, str], int]()
    for zone, name, number, acquires in steps:
        ref = (zone, name)
        count = min(number, slots.available(ref) if acquires else held.get(ref, 0))
        (slots.acquire if acquires else slots.release)(ref, count)
        held[ref] = held.get(ref, 0) + (count if acquires else -count)
        assert len(slots) == sum(held.values()) <= 7
        assert all(n <= 3 for n in held.values())
        assert all(sum(n for (z, _), n in held.items() if z == zone) <= 5 for zone in "zy")
    for ref, number in held.items():
        slots.release(ref, number)
    assert len(slots) == 0
    assert slots.available(("z", "a")) == 3
