"""The protocols through which the engine writes to a bus, and the values it passes.

Nothing here imports a component or the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec


class BusUnavailable(Exception):
    """The bus cannot be reached or is not accepting writes. The failed call does not count as a delivery attempt."""


class SinkEntry(msgspec.Struct, frozen=True):
    """One entry for a stream or channel of the bus, built from an event."""

    pos: int
    """The position of the event in the log."""
    index: int
    """The number of this entry among the entries of the event, from 0."""
    event_id: str
    zone_id: str
    stream: str
    """The name of the stream, or of the channel on which the entry is published."""
    subject: str
    """Entries with the same stream and subject are always delivered in order."""
    fields: Mapping[str, str]
    """Values by field name, without the signature, which is computed when the entry is sent."""

    @property
    def dedupe_key(self) -> str:
        return self.fields["dedupe_key"]


class Marker(NamedTuple):
    """The last event that was written to a stream, as stored on the bus.

    The event id ties it to one log: a restored database reuses positions, but not ids.
    """

    pos: int
    event_id: str


class DatabaseChecks(Protocol):
    """Checks values that are stored on the bus against the database."""

    async def has_event(self, marker: Marker) -> bool:
        """Whether the log has the marker's event at the marker's position."""

    async def holds_lease(self) -> bool:
        """Whether the caller's term is still the current one in the database."""


class WriterIdentity(NamedTuple):
    """The lease holder that writes for a sink."""

    sink_id: str
    """The sink whose fence and markers the writer updates."""
    term: int
    holder: str
    checks: DatabaseChecks

    def __str__(self) -> str:
        return f"{self.term} {self.holder}"


class WriterFenced(Exception):
    """Another process has taken over, and the database confirms it."""


class RejectedEntry(NamedTuple):
    """An entry that the bus rejects for its content."""

    entry: SinkEntry
    error: str


class StreamWriter(Protocol):
    """Writes the entries of a sink. All methods except `close` raise `BusUnavailable` and `WriterFenced`."""

    async def fence_older_terms(self, identity: WriterIdentity) -> None:
        """Prevent all processes with an older term from writing, from now on."""

    async def deliver(
        self, identity: WriterIdentity, after_pos: int, entries: Sequence[SinkEntry]
    ) -> list[RejectedEntry]:
        """Write the entries of each stream in order, up to the first entry that is rejected.

        Return the rejected entries, at most one per stream. Entries that an earlier call has written are skipped. This
        requires that `entries` holds all entries of the events after position `after_pos`, without a gap.
        """

    async def deliver_delayed(self, identity: WriterIdentity, entries: Sequence[SinkEntry]) -> list[str | None]:
        """Write each delayed entry once, independently of the others. Return a rejection reason or None per entry."""

    async def close(self) -> None: ...


class SlotCounter(NamedTuple):
    """The number of taken slots in a zone, as of a position in the log."""

    zone_id: str
    taken: int
    limit: int
    pos: int
    replaces_pos: str | None = None
    """A stored position to overwrite although it is later than `pos`. It is wrong: the log has not reached it."""


class StoredSlotCounter(NamedTuple):
    """The stored counter and position of a zone, unparsed because other programs may have written them."""

    taken: str | None
    pos: str | None


class SlotWriter(Protocol):
    """Writes the slot counters that other programs read."""

    async def write(self, counters: Sequence[SlotCounter]) -> int:
        """Write each counter unless a later position is stored. Return how many were written.

        Raises `BusUnavailable`.
        """

    async def read(self, zone_ids: Sequence[str]) -> list[StoredSlotCounter]:
        """Return the stored counters, one per zone. Raises `BusUnavailable`."""

    async def close(self) -> None: ...
