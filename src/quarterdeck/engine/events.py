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
from quarterdeck.store.port import StoreTx, decode

EVENTS_MAX = 1_000
"""How many events one page holds at most."""


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
        (
            count - 1 - i,
            ids[i],
            e.zone_id,
            e.type,
            e.subject,
            e.actor,
            e.from_state,
            e.to_state,
            e.data,
            e.trace,
            now,
        )
        for i, e in enumerate(events)
    ]
    tx.write(Q.log_advance(count=count))
    tx.write(Q.log_append(batch=rows))
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


async def page(tx: StoreTx, wanted: EventFilter) -> list[Event]:
    types: list[tuple[object, ...]] = [(name,) for name in wanted.types]
    named = {"zone_id": wanted.zone_id} | ({"subject": wanted.subject} if wanted.subject else {})
    statement = Q.log_page_of_subject if wanted.subject else Q.log_page
    [rows] = await tx.read(
        statement(types=types, any_type=int(not types), after=wanted.after, limit=wanted.limit, **named)
    )
    return decode(rows, Event)


async def tail(tx: StoreTx, after: int, limit: int = EVENTS_MAX) -> list[Event]:
    """Every zone's events after a position."""
    [rows] = await tx.read(Q.log_tail(after=after, limit=limit))
    return decode(rows, Event)


def view(event: Event) -> EventView:
    shown = {name: getattr(event, name) for name in Event.__struct_fields__}
    return EventView(**{**shown, "data": msgspec.Raw(event.data.encode()), "at": iso(event.at)})
