"""The event log: every transition writes one row in the same transaction, and the row is never updated.

The log is the audit trail, the outbox and the source of live streams. A transaction allocates `pos` as its last step,
under the row lock of `log_head`, and holds that lock until the commit. So `pos` is in commit order and has no gaps, the
events of a subject are never reordered, and the complete state of a reader is one integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.ids import new_id
from quarterdeck.core.log_event import Event as Event
from quarterdeck.engine.queries import Q
from quarterdeck.store.interface import StoreTransaction, decode
from quarterdeck.store.sql import chunks

PAGE_EVENTS_MAX = 1_000
"""Maximum events per page."""
POSITION_MAX = 2**63 - 1
"""The highest possible position."""
SCAN_POSITIONS_MAX = 100_000
"""The maximum number of positions that one page scans for events of given types. There is no index by type."""


class NewEvent(msgspec.Struct, frozen=True):
    """A transition, as an operation emits it. The commit adds id, time and position."""

    type: str
    zone_id: str
    subject: str
    actor: str
    from_state: str | None = None
    to_state: str | None = None
    data: str = "{}"
    """Encoded JSON. Only the component that emits the event and the readers of the log interpret it."""
    trace: str | None = None


class EventView(msgspec.Struct, frozen=True):
    """One event in the log."""

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


class CommitProof(msgspec.Struct, frozen=True):
    """The first event of a transaction: if it is in the log, the transaction was committed."""

    id: str
    subject: str


def append(tx: StoreTransaction, events: Sequence[NewEvent], now: Millis) -> CommitProof:
    """Queue the rows of the events. This must be the transaction's last write: its lock is held until the commit."""
    count = len(events)
    ids = [new_id() for _ in events]
    rows = [
        (count - 1 - i, ids[i], e.zone_id, e.type, e.subject, e.actor, e.from_state, e.to_state, e.data, e.trace, now)
        for i, e in enumerate(events)
    ]
    tx.write(Q.log_advance(count=count))
    for chunk in chunks(rows):
        tx.write(Q.log_append(batch=chunk))
    return CommitProof(ids[0], events[0].subject)


async def is_committed(tx: StoreTransaction, proof: CommitProof) -> bool:
    [rows] = await tx.read(Q.log_find_event(subject=proof.subject, id=proof.id))
    return bool(rows)


class EventFilter(msgspec.Struct, frozen=True):
    """Which events of a zone to read."""

    zone_id: str
    after: int = 0
    limit: int = 100
    types: tuple[str, ...] = ()
    """Empty: all types."""
    subject: str | None = None

    @property
    def scan_end(self) -> int:
        """The last position that one page scans. Without this limit, a filter by type alone might read many events to
        find a few."""
        return min(self.after + SCAN_POSITIONS_MAX, POSITION_MAX) if self.types and not self.subject else POSITION_MAX

    @property
    def is_filtered(self) -> bool:
        return bool(self.types) or self.subject is not None

    def matches(self, event: Event) -> bool:
        """Whether an event of the zone passes the filter. Its position is not checked."""
        return (not self.types or event.type in self.types) and self.subject in (None, event.subject)


async def read_page(tx: StoreTransaction, filters: EventFilter) -> list[Event]:
    params = _page_params(filters)
    [rows] = await tx.read(
        Q.log_page_of_subject(subject=filters.subject, **params)
        if filters.subject
        else Q.log_page(upto=filters.scan_end, **params)
    )
    return decode(rows, Event)


async def read_newest(tx: StoreTransaction, filters: EventFilter, before: int) -> tuple[list[Event], int | None]:
    """Return a zone's events of given types before a position, newest first, and the position before which the next
    page starts, or None if this page is the last. If such events are rare, a page may be short or empty."""
    before = min(before, (await read_bounds(tx)).head + 1)
    lowest = max(0, before - SCAN_POSITIONS_MAX)
    types = [(name,) for name in filters.types]
    [rows] = await tx.read(
        Q.log_newest(zone_id=filters.zone_id, before=before, downto=lowest, types=types, limit=filters.limit)
    )
    events = decode(rows, Event)
    if len(events) == filters.limit:
        return events, events[-1].pos
    return events, lowest if lowest > 0 else None


class _PageParams(TypedDict):
    zone_id: str
    after: int
    limit: int
    types: list[tuple[str]]
    any_type: int


def _page_params(filters: EventFilter) -> _PageParams:
    return {
        "zone_id": filters.zone_id,
        "after": filters.after,
        "limit": filters.limit,
        "types": [(name,) for name in filters.types],
        "any_type": int(not filters.types),
    }


async def read_tail(tx: StoreTransaction, after: int, limit: int = PAGE_EVENTS_MAX) -> list[Event]:
    """Events of all zones after a position."""
    [rows] = await tx.read(Q.log_tail(after=after, limit=limit))
    return decode(rows, Event)


class LogBounds(msgspec.Struct, frozen=True, array_like=True):
    """The range of positions that the log still has."""

    floor: int
    """Events up to here may have been deleted; all events above exist."""
    head: int
    """The last allocated position."""


async def read_bounds(tx: StoreTransaction) -> LogBounds:
    [rows] = await tx.read(Q.log_bounds())
    return decode(rows, LogBounds)[0]


class ReplayPage(msgspec.Struct, frozen=True):
    """A page of the log after a position, with the bounds of the log at the same instant."""

    bounds: LogBounds
    events: list[Event]
    covers_to: int
    """The page holds all matching events up to here."""
    is_last: bool

    def continues_from(self, position: int) -> bool:
        """Whether a reader at this position has missed no event. Below the floor, events may have been deleted. A
        position above the head comes from a different log."""
        return self.bounds.floor <= position <= self.bounds.head


async def read_replay(tx: StoreTransaction, filters: EventFilter) -> ReplayPage:
    params = _page_params(filters)
    [rows] = await tx.read(
        Q.log_replay_of_subject(subject=filters.subject, **params)
        if filters.subject
        else Q.log_replay(upto=filters.scan_end, **params)
    )
    # A page without events still has one row: the bounds, with nulls for the event.
    events = decode([row[2:] for row in rows if row[2] is not None], Event)
    [bounds] = decode([rows[0][:2]], LogBounds)
    is_full = len(events) == filters.limit
    is_last = not is_full and filters.scan_end >= bounds.head
    covers_to = events[-1].pos if is_full else min(bounds.head, filters.scan_end)
    return ReplayPage(bounds, events, covers_to, is_last)


def to_view(event: Event) -> EventView:
    fields = {name: getattr(event, name) for name in Event.__struct_fields__}
    return EventView(**{**fields, "data": msgspec.Raw(event.data.encode()), "at": iso(event.at)})
