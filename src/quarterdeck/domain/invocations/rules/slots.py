"""Who may push how much at once.

An endpoint that takes its time holds a slot for as long as an attempt may last, and that may be a quarter of an hour.
So a service has only so many, and so has a zone, however many services it has: whatever one of them does, there is room
for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from quarterdeck.domain.invocations.rules.board import ServiceKey

K = TypeVar("K", str, ServiceKey)


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """How many pushes at once, in one process."""

    in_all: int
    of_a_zone: int
    of_a_service: int


class Slots:
    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._of_zones: Counter[str] = Counter()
        self._of_services: Counter[ServiceKey] = Counter()

    def __len__(self) -> int:
        return self._of_zones.total()

    def free(self, service: ServiceKey) -> int:
        """How many more this service may have now."""
        return max(
            0,
            min(
                self._limits.in_all - len(self),
                self._limits.of_a_zone - self._of_zones[service[0]],
                self._limits.of_a_service - self._of_services[service],
            ),
        )

    def take(self, service: ServiceKey, number: int) -> None:
        if number > self.free(service):
            raise ValueError("more slots were taken than are free")
        self._of_zones[service[0]] += number
        self._of_services[service] += number

    def give(self, service: ServiceKey, number: int) -> None:
        _less(self._of_zones, service[0], number)
        _less(self._of_services, service, number)

    def is_full(self) -> bool:
        return len(self) >= self._limits.in_all

    def full_zones(self) -> Iterable[str]:
        return (zone for zone, held in self._of_zones.items() if held >= self._limits.of_a_zone)

    def full_services(self) -> Iterable[ServiceKey]:
        return (ref for ref, held in self._of_services.items() if held >= self._limits.of_a_service)


def _less(held: Counter[K], name: K, number: int) -> None:
    left = held[name] - number
    if left < 0:
        raise ValueError("more slots were given back than were taken")
    if left:
        held[name] = left
    else:
        # What has none is forgotten: services come and go for as long as a server runs.
        del held[name]
