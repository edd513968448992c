"""Who may be called how often at once.

An endpoint that takes its time holds a slot for as long as an attempt may last, and that may be a quarter of an hour.
So whoever is called has only so many, and so has a zone, however many of its own are called: whatever one of them does,
there is room for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

Ref = tuple[str, str]
"""Whoever is called: its zone, and its own id."""
K = TypeVar("K", str, Ref)


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """How many slots, in one process."""

    in_all: int
    of_a_zone: int
    of_one: int


class Shares:
    def __init__(self, limits: ShareLimits) -> None:
        self._limits = limits
        self._of_zones: Counter[str] = Counter()
        self._of_each: Counter[Ref] = Counter()

    def __len__(self) -> int:
        return self._of_zones.total()

    def free(self, ref: Ref) -> int:
        """How many more this one may have now."""
        return max(
            0,
            min(
                self._limits.in_all - len(self),
                self._limits.of_a_zone - self._of_zones[ref[0]],
                self._limits.of_one - self._of_each[ref],
            ),
        )

    def take(self, ref: Ref, number: int) -> None:
        if number > self.free(ref):
            raise ValueError("more slots were taken than are free")
        self._of_zones[ref[0]] += number
        self._of_each[ref] += number

    def give(self, ref: Ref, number: int) -> None:
        _less(self._of_zones, ref[0], number)
        _less(self._of_each, ref, number)

    def is_full(self) -> bool:
        return len(self) >= self._limits.in_all

    def full_zones(self) -> Iterable[str]:
        return (zone for zone, held in self._of_zones.items() if held >= self._limits.of_a_zone)

    def full(self) -> Iterable[Ref]:
        return (ref for ref, held in self._of_each.items() if held >= self._limits.of_one)


def _less(held: Counter[K], name: K, number: int) -> None:
    left = held[name] - number
    if left < 0:
        raise ValueError("more slots were given back than were taken")
    if left:
        held[name] = left
    else:
        # What has none is forgotten: whoever is called comes and goes for as long as a server runs.
        del held[name]
