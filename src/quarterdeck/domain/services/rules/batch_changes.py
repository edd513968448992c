"""What a batch makes of services: each from where it was found to where it is left, and what is told of the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from quarterdeck.domain.services.model import Ref, Service


class Told(msgspec.Struct, frozen=True):
    """One step of a service that is worth an event."""

    verb: Literal["register", "change", "unregister"]
    service: Service
    """As it is after it."""
    before: Service | None = None
    changed: tuple[str, ...] = ()
    reason: str | None = None


class Shelf:
    def __init__(self, services: Iterable[Service] = ()) -> None:
        self._found: dict[Ref, Service] = {service.ref: service for service in services}
        self._left: dict[Ref, Service] = {}

    def get(self, ref: Ref) -> Service | None:
        return self._left.get(ref) or self._found.get(ref)

    def put(self, service: Service) -> None:
        self._left[service.ref] = service

    def take(self, before: Service, after: Service) -> None:
        """As if it had been found as the one and left as the other."""
        self._found[before.ref] = before
        self._left[after.ref] = after

    def made(self) -> list[Service]:
        return [service for ref, service in sorted(self._left.items()) if ref not in self._found]

    def moved(self) -> Iterator[tuple[Service, Service]]:
        """(before, after), in order of the key."""
        for ref, after in sorted(self._left.items()):
            before = self._found.get(ref)
            if before is not None and before != after:
                yield before, after
