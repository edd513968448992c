"""What the engine needs of the other side. Plain values: nothing here knows of events, sessions or the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec


class BusUnavailable(Exception):
    """The other side cannot be reached, or is in no state to take anything. Costs no entry an attempt."""


class SinkEntry(msgspec.Struct, frozen=True):
    """One occurrence, as it is told to the outside."""

    pos: int
    """The position of the event it tells of."""
    index: int
    """Which of that event's entries it is, from 0."""
    event_id: str
    zone_id: str
    stream: str
    subject: str
    """Entries of one stream and one subject are told in order, whatever happens."""
    fields: Mapping[str, str]
    """Flat text, without the signature: that is made when it is sent."""

    @property
    def dedupe_key(self) -> str:
        return self.fields["dedupe_key"]


class Marker(NamedTuple):
    """Up to where a stream has been written, as the other side has it. The id of the event makes it good for one
    history only: of a database that was restored, positions are given out again, and ids are not."""

    pos: int
    event_id: str


class DatabaseChecks(Protocol):
    """The database, asked about what the other side claims."""

    async def has_event(self, marker: Marker) -> bool:
        """Whether the log has this event at this position."""

    async def holds_lease(self) -> bool:
        """Whether the caller's term is still the one that the database knows."""


class WriterIdentity(NamedTuple):
    """In whose name something is written."""

    sink_id: str
    """Whose markers count."""
    term: int
    holder: str
    checks: DatabaseChecks

    def __str__(self) -> str:
        return f"{self.term} {self.holder}"


class WriterFenced(Exception):
    """Another has taken over: the database says so, too."""


class RejectedEntry(NamedTuple):
    """An entry that the other side refuses for what it is."""

    entry: SinkEntry
    error: str


class StreamWriter(Protocol):
    """Where a sink delivers to. Everything raises Away, and Fenced."""

    async def take_over(self, identity: WriterIdentity) -> None:
        """From here on nobody writes by an older term."""

    async def deliver(self, identity: WriterIdentity, after: int, entries: Sequence[SinkEntry]) -> list[RejectedEntry]:
        """Writes each stream's entries in order, up to the first that is refused, of which there may be one for each
        stream. What an earlier try has written is not written twice: so the entries go on from the position `after`
        without a hole, and what is not among them goes to no stream or has been written down elsewhere."""

    async def deliver_delayed(self, identity: WriterIdentity, entries: Sequence[SinkEntry]) -> list[str | None]:
        """Writes entries that had to wait, each by itself and once: None, or why it is refused."""

    async def close(self) -> None: ...


class SlotCounter(NamedTuple):
    """How many of a zone's slots are taken, as of a position of the log."""

    zone_id: str
    taken: int
    limit: int
    pos: int
    replaces_pos: str | None = None
    """The position as the board has it, if that cannot be: it is written over."""


class StoredSlotCounter(NamedTuple):
    """What the board has of a zone, as it stands there; whoever wrote it."""

    taken: str | None
    pos: str | None


class SlotWriter(Protocol):
    """Where others read how many slots are taken."""

    async def write(self, slots: Sequence[SlotCounter]) -> int:
        """Each is written unless the board knows of a later position; how many were. Raises Away."""

    async def read(self, zone_ids: Sequence[str]) -> list[StoredSlotCounter]:
        """What stands there now. Raises Away."""

    async def close(self) -> None: ...
