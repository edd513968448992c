"""The services of a batch, as loaded and as changed, and the type of their events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from quarterdeck.core.ids import Ref
from quarterdeck.domain.services.model import Service


class PendingEvent(msgspec.Struct, frozen=True):
    """An event that the transaction will append to the log."""

    verb: Literal["register", "change", "unregister"]
    service: Service
    """After the change."""
    before: Service | None = None
    changed_fields: tuple[str, ...] = ()
    reason: str | None = None


class BatchChanges:
    def __init__(self, services: Iterable[Service] = ()) -> None:
        self._loaded: dict[Ref, Service] = {service.ref: service for service in services}
        self._current: dict[Ref, Service] = {}

    def get(self, ref: Ref) -> Service | None:
        return self._current.get(ref) or self._loaded.get(ref)

    def put(self, service: Service) -> None:
        self._current[service.ref] = service

    def add_update(self, before: Service, after: Service) -> None:
        """Add a change that another `BatchChanges` computed."""
        self._loaded[before.ref] = before
        self._current[after.ref] = after

    def inserts(self) -> list[Service]:
        return [service for ref, service in sorted(self._current.items()) if ref not in self._loaded]

    def updates(self) -> Iterator[tuple[Service, Service]]:
        """(before, after) of each changed service, ordered by zone and id."""
        for ref, after in sorted(self._current.items()):
            before = self._loaded.get(ref)
            if before is not None and before != after:
                yield before, after
