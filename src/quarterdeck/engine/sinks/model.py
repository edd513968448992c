"""The rows of sinks, and what a sink is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from quarterdeck.bus.redis.interfaces import Entry, Outlet
from quarterdeck.core.clock import Millis
from quarterdeck.engine.event_log import Event


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """A sink's row."""

    name: str
    id: str
    """Of this sink in this database, as long as it is not forgotten: what the other side keeps of it bears this."""
    position: int
    updated_at: Millis
    """When a server that runs it last said so."""


class State(msgspec.Struct, frozen=True, array_like=True):
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


class Parked(msgspec.Struct, frozen=True, array_like=True):
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

    def told(self) -> Entry:
        fields: Mapping[str, str] = msgspec.json.decode(self.fields, type=dict[str, str])
        return Entry(self.pos, self.entry, "", self.zone_id, self.stream, self.subject, fields)

    @property
    def key(self) -> tuple[str, int, int]:
        return self.sink, self.pos, self.entry


@dataclass(frozen=True, slots=True)
class Channel:
    """What a sink tells, and to whom."""

    outlet: Outlet
    entries_of: Callable[[Event], list[Entry]]
    never_gives_up: Callable[[str], bool]
    """Of which streams nothing may be given up."""
