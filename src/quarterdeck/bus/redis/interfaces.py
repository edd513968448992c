"""The protocols of a bus, as the engine calls them. Plain values: nothing here imports sessions or the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec


class BusUnavailable(Exception):
    """The bus cannot be reached or cannot accept anything now. Does not count as an attempt of an entry."""


class SinkEntry(msgspec.Struct, frozen=True):
    """One entry for a stream or channel of the bus, built from an event."""

    pos: int
    """The position of its event."""
    index: int
    """Its number among the entries of that event, from 0."""
    event_id: str
    zone_id: str
    stream: str
    subject: str
    """Entries of one stream and one subject are always delivered in order."""
    fields: Mapping[str, str]
    """Flat text, without the signature, which is computed when the entry is sent."""

    @property
    def dedupe_key(self) -> str:
        return self.fields["dedupe_key"]


class Marker(NamedTuple):
    """How far a stream has been written, as stored on the bus.

    The event id makes it valid for one history only: a restored database reuses positions, but not ids.
    """

    pos: int
    event_id: str


class DatabaseChecks(Protocol):
    """Checks in the database what the bus has stored."""

    async def has_event(self, marker: Marker) -> bool:
        """Whether the log has this event at this position."""

    async def holds_lease(self) -> bool:
        """Whether the caller's term is still the current one in the database."""


class WriterIdentity(NamedTuple):
    """The lease holder that writes."""

    sink_id: str
    """The owner of the markers."""
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
    """Where a sink delivers to. All methods raise `BusUnavailable` and `WriterFenced`."""

    async def take_over(self, identity: WriterIdentity) -> None:
        """From now on, no process with an older term can write."""

    async def deliver(self, identity: WriterIdentity, after: int, entries: Sequence[SinkEntry]) -> list[RejectedEntry]:
        """Write the entries of each stream in order, up to the first that is rejected; at most one per stream is.

        Entries that an earlier try has written are not written twice. For that, the entries must follow the position
        `after` without a gap: an event without an entry here belongs to no stream or was recorded elsewhere.
        """

    async def deliver_delayed(self, identity: WriterIdentity, entries: Sequence[SinkEntry]) -> list[str | None]:
        """Write delayed entries, each separately and once. Per entry: None, or why it is rejected."""

    async def close(self) -> None: ...


class SlotCounter(NamedTuple):
    """How many slots of a zone are taken, as of a position of the log."""

    zone_id: str
    taken: int
    limit: int
    pos: int
    replaces_pos: str | None = None
    """A stored position to overwrite although it is later, because the log has not reached it."""


class StoredSlotCounter(NamedTuple):
    """What is stored for a zone, whatever wrote it."""

    taken: str | None
    pos: str | None


class SlotWriter(Protocol):
    """Where other programs read how many slots are taken."""

    async def write(self, slots: Sequence[SlotCounter]) -> int:
        """Write each counter unless a later position is stored. Return how many. Raises `BusUnavailable`."""

    async def read(self, zone_ids: Sequence[str]) -> list[StoredSlotCounter]:
        """The stored counters. Raises `BusUnavailable`."""

    async def close(self) -> None: ...
