"""The log as a route: a zone's events, oldest first, from a position on; as a list, or live."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import Call, PathId, Route
from quarterdeck.domain.sessions.operations import require_bearer
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import Event, EventFilter, EventView
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.http import event_stream
from quarterdeck.http.event_stream import Live
from quarterdeck.http.stream_limits import Stream

AFTER = "the position after which to begin; without it a list begins with the first event, and a stream now"
TYPES = r"^[a-z_.]+(,[a-z_.]+)*$(?!\n)"

ABOUT = (
    "With `Accept: text/event-stream` the answer does not end: every event is sent as it is committed, with its `pos` "
    "as id and its type as name. Who comes again with `Last-Event-ID` misses nothing and sees nothing twice. A "
    "position that the log does not reach is answered by one `reset`, and the stream goes on from the floor."
)


class EventsQuery(msgspec.Struct, frozen=True):
    after: Annotated[int, Meta(ge=0, le=2**63 - 1, description=AFTER)] | None = None
    limit: Annotated[int, Meta(ge=1, le=log.EVENTS_MAX)] = 100
    types: Annotated[str, Meta(pattern=TYPES, max_length=1_000, description="separated by commas")] | None = None
    subject: PathId | None = None


class EventList(msgspec.Struct, frozen=True):
    items: list[EventView]
    next_after: int | None
    """Where the next page begins, also if this one is short; null when it is the last so far."""


class LogDesk:
    def __init__(self, engine: Engine, live: Live) -> None:
        self._engine = engine
        self._live = live

    async def events(self, call: Call) -> EventList | Stream:
        """The log as a list, or as it grows: that is for the client to say."""
        query = call.query
        assert isinstance(query, EventsQuery)
        types = tuple(query.types.split(",")) if query.types else ()
        wanted = EventFilter(call.zone, query.after or 0, query.limit, types, query.subject)
        return await (self._stream(call, wanted) if call.wants_stream else self._list(call, wanted))

    async def _stream(self, call: Call, wanted: EventFilter) -> Stream:
        if call.last_event_id is not None:
            # It knows better than the URL, which a client that comes again repeats as it was.
            wanted = msgspec.structs.replace(wanted, after=event_stream.position_of(call.last_event_id))
        assert isinstance(call.query, EventsQuery)
        begins_now = call.last_event_id is None and call.query.after is None
        return await self._live.open(wanted, call.caller.bearer, begins_now=begins_now)

    async def _list(self, call: Call, asked: EventFilter) -> EventList:
        bearer = call.caller.bearer
        wanted = msgspec.structs.replace(asked, limit=asked.limit + 1)

        async def read(tx: Tx) -> tuple[list[Event], int]:
            await require_bearer(tx, bearer)
            head = (await log.bounds(tx)).head if wanted.upto < log.LAST else 0
            events = await log.page(tx, wanted)
            if not events:
                await zones.require(tx, call.zone)
            return events, head

        found, head = await self._engine.read(read, zones={call.zone, *([bearer.zone_id] if bearer else [])})
        shown = found[: asked.limit]
        # A page of certain types may end before the log does, with fewer events than asked for, or none.
        following = wanted.upto if wanted.upto < head else None
        if len(found) > asked.limit:
            following = shown[-1].pos
        return EventList([log.view(event) for event in shown], following)


def routes(desk: LogDesk) -> list[Route]:
    return [
        Route(
            "GET", "/zones/{zone}/events", desk.events, "List or follow a zone's events, oldest first", LIFECYCLE,
            query=EventsQuery, answer=EventList, streams=EventView, tags=("events",), description=ABOUT,
            refusals=("zone_not_found", "invalid_last_event_id", "too_many_streams", "draining"),
        )
    ]  # fmt: skip
