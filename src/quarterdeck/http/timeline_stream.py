"""A fleet's timeline as it grows: server-sent events.

    id: 57                                       a position of the log: what to say in Last-Event-ID when coming again
    event: entry
    data: {"id":12,"kind":"broadcast",…}         something was said: the whole entry, as the timeline shows it

    id: 61
    event: moved
    data: {"id":12,"recipients":[…]}             acknowledged or canceled: the recipients who have moved, and no text

The log says that something was said, acknowledged or canceled, and never what: that is read anew, as it is by then.
Several events of one entry that are found together are one, in the place of the first of them: whoever is cut behind
it, and comes again, may be told once more what it knows already, and is never left without what it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.routing import Call
from quarterdeck.domain.fleets.model.filters import OfFleet
from quarterdeck.domain.fleets.model.views import EntryView, MovedView
from quarterdeck.domain.fleets.operations import timeline
from quarterdeck.domain.fleets.operations.fleet_reads import in_fleet
from quarterdeck.domain.fleets.route_params import of_fleet
from quarterdeck.domain.fleets.rules import views
from quarterdeck.engine.event_log import Event, EventFilter
from quarterdeck.engine.event_subscriber import Follower
from quarterdeck.engine.transaction import Tx
from quarterdeck.http import event_stream
from quarterdeck.http.event_stream import EventStream, Live

SENT = "message.sent"
TYPES = (SENT, "message.acknowledged", "message.canceled")
AT_ONCE = 8
"""Entries that are read and sent together: a broadcast is as long as its fleet is large."""
_encode = msgspec.json.Encoder().encode


class _Told(msgspec.Struct, frozen=True):
    """What an event of a message says of where it belongs."""

    fleet_id: int = msgspec.field(name="fleetId")
    origin: int | None = None


_told = msgspec.json.Decoder(_Told).decode


@dataclass(slots=True)
class Untold:
    """What is to be told of one entry."""

    entry_id: int
    first: int
    """The position of the first event of it that was not told."""
    is_new: bool
    moved: set[int] = field(default_factory=set)
    """Messages, where the entry is not new."""
    upto: int = 0
    """When it was told, everything up to this position was."""


class EntryStream(EventStream):
    def __init__(self, live: Live, follower: Follower, fleet: OfFleet, begins_now: bool) -> None:
        super().__init__(live, follower, fleet.bearer, begins_now)
        self._fleet = fleet
        self._untold: list[Untold] = []

    async def recheck(self) -> None:
        await self._live.engine.read(self._admit, zones=self._zones)

    async def _admit(self, tx: Tx) -> None:
        """Refuses whoever may not read the fleet, and one that is not there."""
        await in_fleet(tx, self._fleet)

    async def _news(self) -> bytes:
        if not self._untold:
            if self.follower.joined:
                found = self.follower.take_events()
            else:
                found, outside = await self.follower.catch_up_events()
                if outside is not None:
                    return self._reset(outside)
            self._untold = news(found, self._fleet.fleet_id, self.follower.position)
        return await self._shown() if self._untold else b""

    async def _shown(self) -> bytes:
        """The next of them, as they are now. They are forgotten only when they were read."""
        due = self._untold[:AT_ONCE]
        try:
            frames = await self._live.engine.read(lambda tx: self._frames(tx, due), zones=self._zones)
        except Problem as problem:
            # May not read it any more, and is told nothing more.
            self.close(problem.code)
            return b""
        del self._untold[: len(due)]
        return b"".join(frames)

    async def _frames(self, tx: Tx, due: Sequence[Untold]) -> list[bytes]:
        begun = [each.entry_id for each in due if each.is_new]
        found = await timeline.news(tx, self._fleet, begun, [one for each in due for one in each.moved])
        frames: list[bytes] = []
        for each in due:
            moved = [found.moved[task_id] for task_id in sorted(each.moved) if task_id in found.moved]
            if entry := found.entries.get(each.entry_id):
                frames.append(_frame(each, b"entry", views.entry_view(entry, found.names)))
            elif moved:
                frames.append(_frame(each, b"moved", views.moved_view(each.entry_id, moved, found.names)))
        return frames

    @property
    def _position(self) -> int:
        return self._untold[0].first - 1 if self._untold else super()._position

    @property
    def _is_idle(self) -> bool:
        return not self._untold and super()._is_idle


def _frame(of: Untold, name: bytes, view: EntryView | MovedView) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (of.upto, name, _encode(view))


def news(events: Sequence[Event], fleet_id: int, upto: int) -> list[Untold]:
    """What these tell of a fleet, up to this position of the log: of each entry once, in the place of its first event.
    An entry that is new is shown as it is by then, and what became of it with it."""
    found: dict[int, Untold] = {}
    for event in events:
        told = _told(event.data)
        if told.fleet_id != fleet_id:
            continue
        message_id = int(event.subject)
        entry_id = message_id if told.origin is None else told.origin
        of = found.setdefault(entry_id, Untold(entry_id, event.pos, is_new=event.type == SENT))
        if not of.is_new:
            of.moved.add(message_id)
    ordered = [*found.values()]
    for of, following in pairwise(ordered):
        of.upto = following.first - 1
    if ordered:
        ordered[-1].upto = upto
    return ordered


@dataclass(frozen=True, slots=True)
class Timelines:
    """Opens them. Made once, in the composition root."""

    live: Live

    async def follow(self, call: Call) -> EntryStream:
        fleet = of_fleet(call)
        begins_now = call.last_event_id is None
        after = 0 if call.last_event_id is None else event_stream.position_of(call.last_event_id)
        follower = self.live.follower(EventFilter(call.zone, after=after, types=TYPES), fleet.bearer)
        return await self.live.begin(EntryStream(self.live, follower, fleet, begins_now))
