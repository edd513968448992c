"""Limits on concurrent outbound calls: in total, per zone and per target.

A slow endpoint occupies a slot until its attempt times out, which may take 15 minutes. The limits per target and per
zone keep one target, or one zone with many targets, from using up all slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

TargetRef = tuple[str, str]
"""(zone id, id of the called endpoint)"""
K = TypeVar("K", str, TargetRef)


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """The maximum numbers of slots in use in one process."""

    total: int
    per_zone: int
    per_target: int


class FairSlots:
    """Counts the slots in use, one per running call."""

    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._by_zone: Counter[str] = Counter()
        self._by_target: Counter[TargetRef] = Counter()

    def __len__(self) -> int:
        return self._by_zone.total()

    def available(self, ref: TargetRef) -> int:
        """How many more slots this target may acquire now."""
        return max(
            0,
            min(
                self._limits.total - len(self),
                self._limits.per_zone - self._by_zone[ref[0]],
                self._limits.per_target - self._by_target[ref],
            ),
        )

    def acquire(self, ref: TargetRef, count: int) -> None:
        if count > self.available(ref):
            raise ValueError("more slots acquired than available")
        self._by_zone[ref[0]] += count
        self._by_target[ref] += count

    def release(self, ref: TargetRef, count: int) -> None:
        _subtract(self._by_zone, ref[0], count)
        _subtract(self._by_target, ref, count)

    def is_full(self) -> bool:
        return len(self) >= self._limits.total

    def full_zones(self) -> Iterable[str]:
        return (zone for zone, count in self._by_zone.items() if count >= self._limits.per_zone)

    def full_targets(self) -> Iterable[TargetRef]:
        return (ref for ref, count in self._by_target.items() if count >= self._limits.per_target)


def _subtract(counts: Counter[K], key: K, count: int) -> None:
    remaining = counts[key] - count
    if remaining < 0:
        raise ValueError("more slots released than acquired")
    if remaining:
        counts[key] = remaining
    else:
        # Delete zero counts. Otherwise targets that no longer exist would accumulate for as long as the server runs.
        del counts[key]
