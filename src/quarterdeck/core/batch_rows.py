"""The rows and events of one batch while its commands are decided.

Commands are decided in order of arrival, and each sees the changes of the commands before it. Nothing is written before
the whole batch is decided, so a row that changes five times is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import msgspec

from quarterdeck.core.ids import Ref

NO_DATA: Mapping[str, object] = MappingProxyType({})


class Row(Protocol):
    @property
    def ref(self) -> Ref: ...


class Sender(Protocol):
    """A command, or the event that caused a change."""

    @property
    def actor(self) -> str: ...
    @property
    def trace(self) -> str | None: ...


R = TypeVar("R")
RowT = TypeVar("RowT", bound=Row)


class PendingEvent(msgspec.Struct, Generic[R], frozen=True):
    """An event that the transaction will append to the log."""

    type: str
    from_state: str | None
    row: R
    """After the change."""
    actor: str
    trace: str | None
    data: Mapping[str, object] = NO_DATA
    """Data that the row does not contain, for example the reason."""


class BatchRows(Generic[RowT]):
    """Loaded rows, their current values, which of them must be written, and the events about them."""

    def __init__(self, loaded: Iterable[RowT] = ()) -> None:
        self._current: dict[Ref, RowT] = {}
        self._inserted: dict[Ref, None] = {}
        self._originals: dict[Ref, RowT] = {}
        self.events: list[PendingEvent[RowT]] = []
        for row in loaded:
            # Several statements may load the same row.
            self._current.setdefault(row.ref, row)

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._current

    def __getitem__(self, ref: Ref) -> RowT:
        return self._current[ref]

    def get(self, ref: Ref) -> RowT | None:
        return self._current.get(ref)

    def values(self) -> Iterable[RowT]:
        return self._current.values()

    def insert(self, row: RowT) -> None:
        ref = row.ref
        self._inserted[ref] = None
        self._current[ref] = row

    def update(self, row: RowT) -> None:
        ref = row.ref
        if ref not in self._inserted and ref not in self._originals:
            self._originals[ref] = self._current[ref]
        self._current[ref] = row

    def emit(
        self, event_type: str, from_state: str | None, row: RowT, sender: Sender, data: Mapping[str, object] = NO_DATA
    ) -> None:
        self.events.append(PendingEvent(event_type, from_state, row, sender.actor, sender.trace, data))

    def inserts(self) -> list[RowT]:
        return [self._current[ref] for ref in self._inserted]

    def updates(self) -> list[tuple[RowT, RowT]]:
        """(as loaded, current) for each stored row that was changed."""
        return [(original, self._current[ref]) for ref, original in self._originals.items()]
