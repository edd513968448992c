"""A fleet's timeline as server-sent events.

    id: 57                                       a position of the event log: the Last-Event-ID for a reconnect
    event: entry
    data: {"id":12,"kind":"broadcast",…}         a message was sent: the complete entry, as the timeline shows it

    id: 61
    event: moved
    data: {"id":12,"recipients":[…]}             acknowledged or canceled: the changed recipients, without text

The event log records that a message was sent, acknowledged or canceled, but not its text. So the stream reads the
current entry from the database. If several events for one entry are read together, one frame is sent for them, in the
place of the first. A client that reconnects may therefore get a change twice, but never misses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.routing import Call
from quarterdeck.domain.fleets.model.filters import FleetRequest
from quarterdeck.domain.fleets.model.views import TimelineChangeView, TimelineEntryView
from quarterdeck.domain.fleets.operations import timeline
from quarterdeck.domain.fleets.operations.fleet_reads import read_fleet
from quarterdeck.domain.fleets.routes.request_fields import fleet_request
from quarterdeck.domain.fleets.rules import views
from quarterdeck.engine.event_log import Event, EventFilter
from quarterdeck.engine.event_subscriber import EventSubscriber
from quarterdeck.engine.transaction import Transaction
from quarterdeck.http import event_stream
from quarterdeck.http.event_stream import EventStream, EventStreams

MESSAGE_SENT = "message.sent"
EVENT_TYPES = (MESSAGE_SENT, "message.acknowledged", "message.canceled")
ENTRIES_PER_READ = 8
"""Entries that are read and sent at once. The limit is low because a broadcast has one recipient per member."""
_encode = msgspec.json.Encoder().encode


class _MessageEventData(msgspec.Struct, frozen=True):
    """The fleet and the timeline entry that a message event belongs to."""

    fleet_id: int = msgspec.field(name="fleetId")
    origin: int | None = None


_decode_event_data = msgspec.json.Decoder(_MessageEventData).decode


@dataclass(slots=True)
class PendingEntry:
    """A timeline entry that has not been sent yet."""

    entry_id: int
    first_pos: int
    """The position of the first event of this entry that has not been sent."""
    is_new: bool
    changed_message_ids: set[int] = field(default_factory=set)
    """Empty if the entry is new, because a new entry is sent completely."""
    last_pos: int = 0
    """The event id to send with this entry. Once it is sent, every event up to this position has been sent."""


class TimelineStream(EventStream):
    def __init__(
        self, event_streams: EventStreams, subscriber: EventSubscriber, fleet: FleetRequest, starts_at_head: bool
    ) -> None:
        super().__init__(event_streams, subscriber, fleet.bearer, starts_at_head)
        self._fleet = fleet
        self._pending: list[PendingEntry] = []

    async def recheck(self) -> None:
        await self._event_streams.engine.read(self._authorize, zones=self._zones)

    async def _authorize(self, tx: Transaction) -> None:
        """Refuse a caller that may not read the fleet, and a fleet that does not exist."""
        await read_fleet(tx, self._fleet)

    async def _read_pending(self) -> bytes:
        if not self._pending:
            if self.subscriber.is_live:
                events = self.subscriber.take_events()
            else:
                events, missed_bounds = await self.subscriber.catch_up_events()
                if missed_bounds is not None:
                    return self._reset_frame(missed_bounds)
            self._pending = collect_entries(events, self._fleet.fleet_id, self.subscriber.position)
        return await self._next_frames() if self._pending else b""

    async def _next_frames(self) -> bytes:
        """Encode the next entries in their current state. Entries stay pending until the read succeeds."""
        batch = self._pending[:ENTRIES_PER_READ]
        try:
            frames = await self._event_streams.engine.read(lambda tx: self._build_frames(tx, batch), zones=self._zones)
        except Problem as problem:
            # The caller has lost access to the fleet, so the stream ends.
            self.close(problem.code)
            return b""
        del self._pending[: len(batch)]
        return b"".join(frames)

    async def _build_frames(self, tx: Transaction, batch: Sequence[PendingEntry]) -> list[bytes]:
        new_entry_ids = [pending.entry_id for pending in batch if pending.is_new]
        timeline_changes = await timeline.load_changes(
            tx,
            self._fleet,
            new_entry_ids,
            [message_id for pending in batch for message_id in pending.changed_message_ids],
        )
        frames: list[bytes] = []
        for pending in batch:
            messages = [
                timeline_changes.changed_messages[message_id]
                for message_id in sorted(pending.changed_message_ids)
                if message_id in timeline_changes.changed_messages
            ]
            if entry := timeline_changes.entries.get(pending.entry_id):
                frames.append(_encode_frame(pending, b"entry", views.entry_view(entry, timeline_changes.names)))
            elif messages:
                view = views.timeline_change_view(pending.entry_id, messages, timeline_changes.names)
                frames.append(_encode_frame(pending, b"moved", view))
        return frames

    @property
    def _position(self) -> int:
        return self._pending[0].first_pos - 1 if self._pending else super()._position

    @property
    def _is_idle(self) -> bool:
        return not self._pending and super()._is_idle


def _encode_frame(pending: PendingEntry, name: bytes, view: TimelineEntryView | TimelineChangeView) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (pending.last_pos, name, _encode(view))


def collect_entries(events: Sequence[Event], fleet_id: int, last_pos: int) -> list[PendingEntry]:
    """Group the events of a fleet by timeline entry, in the order of each entry's first event.

    `last_pos` is the position up to which the log was read. A new entry is sent in its current state, which includes
    its later changes.
    """
    entries: dict[int, PendingEntry] = {}
    for event in events:
        data = _decode_event_data(event.data)
        if data.fleet_id != fleet_id:
            continue
        message_id = int(event.subject)
        entry_id = message_id if data.origin is None else data.origin
        pending = entries.setdefault(entry_id, PendingEntry(entry_id, event.pos, is_new=event.type == MESSAGE_SENT))
        if not pending.is_new:
            pending.changed_message_ids.add(message_id)
    ordered = [*entries.values()]
    for pending, next_entry in pairwise(ordered):
        pending.last_pos = next_entry.first_pos - 1
    if ordered:
        ordered[-1].last_pos = last_pos
    return ordered


@dataclass(frozen=True, slots=True)
class TimelineStreams:
    """Opens timeline streams. A process has one instance."""

    event_streams: EventStreams

    async def open(self, call: Call[None, None]) -> TimelineStream:
        fleet = fleet_request(call)
        starts_at_head = call.last_event_id is None
        after = 0 if call.last_event_id is None else event_stream.parse_position(call.last_event_id)
        subscriber = self.event_streams.new_subscriber(
            EventFilter(call.zone_id, after=after, types=EVENT_TYPES), fleet.bearer
        )
        return await self.event_streams.start(TimelineStream(self.event_streams, subscriber, fleet, starts_at_head))
