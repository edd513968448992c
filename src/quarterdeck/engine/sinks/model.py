"""The rows of sinks, and what a sink is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from quarterdeck.bus.redis.interfaces import SinkEntry, StreamWriter
from quarterdeck.core.clock import Millis
from quarterdeck.engine.event_log import Event


class SinkRow(msgspec.Struct, frozen=True, array_like=True):
    """A sink's row."""

    name: str
    id: str
    """Of this sink in this database, as long as it is not forgotten: what the other side keeps of it bears this."""
    position: int
    updated_at: Millis
    """When a server that runs it last said so."""


class SinkState(msgspec.Struct, frozen=True, array_like=True):
    """A sink's row beside the log, at one instant."""

    name: str
    id: str
    position: int
    updated_at: Millis
    floor: int
    head: int
    oldest_at: Millis | None
    """The time of the first event that is not told."""
    next_at: Millis | None
    """When something that was refused is tried again."""


class ParkedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry that waits, or was given up."""

    sink: str
    pos: int
    entry: int
    zone_id: str
    stream: str
    subject: str
    fields: str
    """JSON: kept here, so that the event itself may go."""
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
    """What a sink tells, and to whom."""

    writer: StreamWriter
    build_entries: Callable[[Event], list[SinkEntry]]
    must_deliver: Callable[[str], bool]
    """Of which streams nothing may be given up."""
