"""The rows of sinks, and the target of a sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from quarterdeck.bus.redis.interfaces import SinkEntry, StreamWriter
from quarterdeck.core.clock import Millis
from quarterdeck.engine.event_log import Event


class SinkRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of `sinks`."""

    name: str
    id: str
    """Unique per database and creation. The names of the markers at the target contain it."""
    position: int
    updated_at: Millis
    """When a server last ran the sink."""


class SinkState(msgspec.Struct, frozen=True, array_like=True):
    """A row of `sinks` with the bounds of the log, at one instant."""

    name: str
    id: str
    position: int
    updated_at: Millis
    floor: int
    head: int
    oldest_at: Millis | None
    """The time of the oldest undelivered event."""
    next_at: Millis | None
    """When the next rejected entry is retried."""


class ParkedEntry(msgspec.Struct, frozen=True, array_like=True):
    """A row of `sink_entries`: an entry that is waiting for a retry, or is dead."""

    sink: str
    pos: int
    entry: int
    zone_id: str
    stream: str
    subject: str
    fields: str
    """JSON. Stored here, so that retention may delete the event."""
    attempts: int
    next_at: Millis
    dead_at: Millis | None
    error: str
    created_at: Millis

    def to_entry(self) -> SinkEntry:
        fields: Mapping[str, str] = msgspec.json.decode(self.fields, type=dict[str, str])
        return SinkEntry(self.pos, self.entry, "", self.zone_id, self.stream, self.subject, fields)

    @property
    def key(self) -> tuple[str, int, int]:
        return self.sink, self.pos, self.entry


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """What a sink delivers, and where to."""

    writer: StreamWriter
    build_entries: Callable[[Event], list[SinkEntry]]
    must_deliver: Callable[[str], bool]
    """Whether entries of a stream are retried forever."""
