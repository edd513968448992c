"""A fleet's timeline as it grows: server-sent events.

    id: 57                                       a position of the log: what to say in Last-Event-ID when coming again
    event: entry
    data: {"id":12,"kind":"broadcast",…}         the whole entry, as the timeline shows it

The log says that something was said, acknowledged or canceled, and never what: each event that is about this fleet has
its entry read anew. Of several events of one entry that are found together only the last is sent, with its position:
whoever was cut before it, and comes again, finds it after its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.wire import Call
from quarterdeck.domain.fleets.model.filters import OfFleet
from quarterdeck.domain.fleets.operations import timeline
from quarterdeck.domain.fleets.operations.looking import in_fleet
from quarterdeck.domain.fleets.rules import showing
from quarterdeck.engine.events import Event, EventFilter
from quarterdeck.engine.follower import Follower
from quarterdeck.engine.tx import Tx
from quarterdeck.http import sse
from quarterdeck.http.sse import EventStream, Live

TYPES = ("message.sent", "message.acknowledged", "message.canceled")
AT_ONCE = 8
"""Entries that are read and sent together: a broadcast is as long as its fleet is large."""
_encode = msgspec.json.Encoder().encode


class _Told(msgspec.Struct, frozen=True):
    """What an event of a message says of where it belongs."""

    fleet_id: int = msgspec.field(name="fleetId")
    origin: int | None = None


_told = msgspec.json.Decoder(_Told).decode


class EntryStream(EventStream):
    def __init__(self, live: Live, follower: Follower, fleet: OfFleet, begins_now: bool) -> None:
        super().__init__(live, follower, fleet.bearer, begins_now)
        self._fleet = fleet
        self._unshown: dict[int, int] = {}
        """Entries that something happened to, by the position of the last event of each, in their order."""

    async def recheck(self) -> None:
        await self._live.engine.read(self._admit, zones=self._zones)

    async def _admit(self, tx: Tx) -> None:
        """Refuses whoever may not read the fleet, and one that is not there."""
        await in_fleet(tx, self._fleet)

    async def _news(self) -> bytes:
        if not self._unshown:
            if self.follower.joined:
                self._unshown = latest(self.follower.take_events(), self._fleet.fleet_id)
            else:
                found, outside = await self.follower.catch_up_events()
                if outside is not None:
                    return self._reset(outside)
                self._unshown = latest(found, self._fleet.fleet_id)
        return await self._shown() if self._unshown else b""

    async def _shown(self) -> bytes:
        """The next of them, as they are now. They are forgotten only when they were read."""
        due = dict([*self._unshown.items()][:AT_ONCE])
        try:
            found = await self._live.engine.read(
                lambda tx: timeline.named(tx, self._fleet, due.values()), zones=self._zones
            )
        except Problem as problem:
            # May not read it any more, and is told nothing more.
            self.close(problem.code)
            return b""
        entries = {entry.head.task_id: entry for entry in found.entries}
        frames = [
            b"id: %d\nevent: entry\ndata: %s\n\n"
            % (position, _encode(showing.entry_view(entries[task_id], found.names)))
            for position, task_id in due.items()
            if task_id in entries
        ]
        for position in due:
            del self._unshown[position]
        return b"".join(frames)

    @property
    def _position(self) -> int:
        return min(self._unshown) - 1 if self._unshown else super()._position

    @property
    def _is_idle(self) -> bool:
        return not self._unshown and super()._is_idle


def latest(events: Sequence[Event], fleet_id: int) -> dict[int, int]:
    """By position, which entries of the fleet these are about: each once, where it was last heard of."""
    last: dict[int, int] = {}
    for event in events:
        told = _told(event.data)
        if told.fleet_id == fleet_id:
            last[int(event.subject) if told.origin is None else told.origin] = event.pos
    return {position: task_id for task_id, position in sorted(last.items(), key=lambda each: each[1])}


@dataclass(frozen=True, slots=True)
class Timelines:
    """Opens them. Made once, in the composition root."""

    live: Live

    async def follow(self, call: Call) -> EntryStream:
        fleet = OfFleet(zone_id=call.zone, caller=call.caller, fleet_id=int(call.params["fleet"]))
        begins_now = call.last_event_id is None
        after = 0 if call.last_event_id is None else sse.position_of(call.last_event_id)
        follower = self.live.follower(EventFilter(call.zone, after=after, types=TYPES), fleet.bearer)
        return await self.live.begin(EntryStream(self.live, follower, fleet, begins_now))
