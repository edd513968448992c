"""The log: every transition writes one row, in its own transaction, and the row is never updated.

It is the audit trail, the outbox and the replay of live streams in one. `pos` is given out as the last thing a
transaction does, under the one row lock of `log_head`, which it keeps until it has committed. So `pos` is commit
order, it has no gaps, a subject's events never invert, and a reader's whole state is one integer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.ids import new_id
from quarterdeck.engine.queries import Q
from quarterdeck.store.interface import StoreTx, decode
from quarterdeck.store.sql import Param, pieces

EVENTS_MAX = 1_000
"""How many events one page holds at most."""
LAST = 2**63 - 1
"""No position is higher."""
SPAN = 100_000
"""Positions that one page looks through for events of certain types, which have no index."""


class NewEvent(msgspec.Struct, frozen=True):
    """A transition as an operation tells it; the commit gives it its id, its time and its position."""

    type: str
    zone_id: str
    subject: str
    actor: str
    from_state: str | None = None
    to_state: str | None = None
    data: str = "{}"
    """JSON, already encoded: it is opaque to everything between the room and the reader."""
    trace: str | None = None


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A row of the log, in the order of the select lists in `queries.sql`."""

    pos: int
    id: str
    zone_id: str
    type: str
    subject: str
    actor: str
    from_state: str | None
    to_state: str | None
    data: str
    trace: str | None
    at: Millis


class EventView(msgspec.Struct, frozen=True):
    """An event as it is shown."""

    pos: int
    id: str
    zone_id: str
    type: str
    subject: str
    actor: str
    from_state: str | None = msgspec.field(name="from")
    to_state: str | None = msgspec.field(name="to")
    data: msgspec.Raw
    trace: str | None
    at: str


class Witness(msgspec.Struct, frozen=True):
    """What proves that a batch was committed: its first event."""

    id: str
    subject: str


def append(tx: StoreTx, events: Sequence[NewEvent], now: Millis) -> Witness:
    """Queues the rows of a batch. Must be the last thing a transaction writes: it takes the last lock."""
    count = len(events)
    ids = [new_id() for _ in events]
    rows: list[tuple[object, ...]] = [
        (count - 1 - i, ids[i], e.zone_id, e.type, e.subject, e.actor, e.from_state, e.to_state, e.data, e.trace, now)
        for i, e in enumerate(events)
    ]
    tx.write(Q.log_advance(count=count))
    for piece in pieces(rows):
        tx.write(Q.log_append(batch=piece))
    return Witness(ids[0], events[0].subject)


async def committed(tx: StoreTx, witness: Witness) -> bool:
    [found] = await tx.read(Q.log_witness(subject=witness.subject, id=witness.id))
    return bool(found)


class EventFilter(msgspec.Struct, frozen=True):
    """Which events of a zone are wanted."""

    zone_id: str
    after: int = 0
    limit: int = 100
    types: tuple[str, ...] = ()
    """None named: all of them."""
    subject: str | None = None

    @property
    def upto(self) -> int:
        """How far one page looks. By types alone it may look at many events and find few."""
        return min(self.after + SPAN, LAST) if self.types and not self.subject else LAST

    @property
    def is_narrow(self) -> bool:
        return bool(self.types) or self.subject is not None

    def wants(self, event: Event) -> bool:
        """Whether an event of the zone is one of these, wherever it stands."""
        return (not self.types or event.type in self.types) and self.subject in (None, event.subject)


async def page(tx: StoreTx, wanted: EventFilter) -> list[Event]:
    statement = Q.log_page_of_subject if wanted.subject else Q.log_page
    [rows] = await tx.read(statement(**_asked(wanted)))
    return decode(rows, Event)


async def newest(tx: StoreTx, wanted: EventFilter, before: int) -> tuple[list[Event], int | None]:
    """A zone's events of certain types before a position, newest first; and before which position the next page begins,
    or None if this was the last. A page may be short, or empty, where what is wanted is rare."""
    before = min(before, (await bounds(tx)).head + 1)
    downto = max(0, before - SPAN)
    types: list[tuple[object, ...]] = [(name,) for name in wanted.types]
    [rows] = await tx.read(
        Q.log_newest(zone_id=wanted.zone_id, before=before, downto=downto, types=types, limit=wanted.limit)
    )
    found = decode(rows, Event)
    if len(found) == wanted.limit:
        return found, found[-1].pos
    return found, downto if downto > 0 else None


def _asked(wanted: EventFilter) -> dict[str, Param]:
    types: list[tuple[object, ...]] = [(name,) for name in wanted.types]
    asked: dict[str, Param] = {"zone_id": wanted.zone_id, "after": wanted.after, "limit": wanted.limit}
    if wanted.subject:
        asked["subject"] = wanted.subject
    else:
        asked["upto"] = wanted.upto
    return {**asked, "types": types, "any_type": int(not types)}


async def tail(tx: StoreTx, after: int, limit: int = EVENTS_MAX) -> list[Event]:
    """Every zone's events after a position."""
    [rows] = await tx.read(Q.log_tail(after=after, limit=limit))
    return decode(rows, Event)


class Bounds(msgspec.Struct, frozen=True, array_like=True):
    """What is left of the log."""

    floor: int
    """Up to here events may be gone; what stands above is there."""
    head: int
    """The last position given out."""


async def bounds(tx: StoreTx) -> Bounds:
    [rows] = await tx.read(Q.log_bounds())
    return decode(rows, Bounds)[0]


class Replay(msgspec.Struct, frozen=True):
    """A page of the log for somebody who goes on from a position, and the log's bounds at that very instant."""

    bounds: Bounds
    events: list[Event]
    covers: int
    """Up to here the page holds everything that is wanted."""
    is_last: bool

    def begins_after(self, position: int) -> bool:
        """Whether somebody at this position misses nothing. One below the floor may; one above the head comes from
        another log."""
        return self.bounds.floor <= position <= self.bounds.head


async def replay(tx: StoreTx, wanted: EventFilter) -> Replay:
    statement = Q.log_replay_of_subject if wanted.subject else Q.log_replay
    [rows] = await tx.read(statement(**_asked(wanted)))
    # A page without events is one row all the same: of bounds, and of nothing beside them.
    found = decode([row[2:] for row in rows if row[2] is not None], Event)
    [limits] = decode([rows[0][:2]], Bounds)
    is_full = len(found) == wanted.limit
    is_last = not is_full and wanted.upto >= limits.head
    covers = found[-1].pos if is_full else min(limits.head, wanted.upto)
    return Replay(limits, found, covers, is_last)


def view(event: Event) -> EventView:
    shown = {name: getattr(event, name) for name in Event.__struct_fields__}
    return EventView(**{**shown, "data": msgspec.Raw(event.data.encode()), "at": iso(event.at)})
