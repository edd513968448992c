"""The route for the event log: a zone's events after a position, oldest first, as a page or a stream."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import AnyCall, Call, PathId, Route
from quarterdeck.domain.access.operations import require_token
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import Event, EventFilter, EventView
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.http import event_stream
from quarterdeck.http.event_stream import EventStreams
from quarterdeck.http.stream_limits import Stream

AFTER_DESCRIPTION = "return events after this position; default: a page starts at the first event, a stream at the end"
TYPES_PATTERN = r"^[a-z_.]+(,[a-z_.]+)*$(?!\n)"

EVENTS_DESCRIPTION = (
    "With `Accept: text/event-stream` the response is a stream: every event is sent when it is committed, with its "
    "`pos` as id and its type as name. A client that reconnects with `Last-Event-ID` misses no event and gets none "
    "twice. If the log does not contain that position, the stream sends one `reset` event and continues with the "
    "oldest stored event."
)


class EventsQuery(msgspec.Struct, frozen=True):
    after: Annotated[int, Meta(ge=0, le=2**63 - 1, description=AFTER_DESCRIPTION)] | None = None
    limit: Annotated[int, Meta(ge=1, le=log.PAGE_EVENTS_MAX)] = 100
    types: (
        Annotated[str, Meta(pattern=TYPES_PATTERN, max_length=1_000, description="event types, separated by commas")]
        | None
    ) = None
    subject: PathId | None = None


class EventList(msgspec.Struct, frozen=True):
    items: list[EventView]
    next_after: int | None
    """`after` for the next page. Null if there are no more events yet. A page may have fewer than `limit` items even if
    it is not the last."""


class EventHandlers:
    def __init__(self, engine: Engine, event_streams: EventStreams) -> None:
        self._engine = engine
        self._event_streams = event_streams

    async def events(self, call: Call[None, EventsQuery]) -> EventList | Stream:
        """Return a page or a stream, depending on the Accept header."""
        query = call.query
        types = tuple(query.types.split(",")) if query.types else ()
        filters = EventFilter(call.zone_id, query.after or 0, query.limit, types, query.subject)
        return await (self._stream(call, filters) if call.wants_stream else self._list(call, filters))

    async def _stream(self, call: Call[None, EventsQuery], filters: EventFilter) -> Stream:
        if call.last_event_id is not None:
            # A client that reconnects repeats the URL unchanged, so Last-Event-ID is newer than `after`.
            filters = msgspec.structs.replace(filters, after=event_stream.parse_position(call.last_event_id))
        starts_at_head = call.last_event_id is None and call.query.after is None
        return await self._event_streams.open(filters, call.caller.bearer, starts_at_head=starts_at_head)

    async def _list(self, call: AnyCall, filters: EventFilter) -> EventList:
        bearer = call.caller.bearer
        page_filters = msgspec.structs.replace(filters, limit=filters.limit + 1)

        async def read(tx: Transaction) -> tuple[list[Event], int]:
            await require_token(tx, bearer)
            head = (await log.read_bounds(tx)).head if page_filters.scan_end < log.POSITION_MAX else 0
            events = await log.read_page(tx, page_filters)
            if not events:
                await zones.require_zone(tx, call.zone_id)
            return events, head

        events, head = await self._engine.read(read, zones={call.zone_id, *([bearer.zone_id] if bearer else [])})
        page = events[: filters.limit]
        # A page that is filtered by type scans a limited range, so it may be short or empty before the end of the log.
        next_after = page_filters.scan_end if page_filters.scan_end < head else None
        if len(events) > filters.limit:
            next_after = page[-1].pos
        return EventList([log.to_view(event) for event in page], next_after)


def routes(handlers: EventHandlers) -> list[Route]:
    return [
        Route(
            "GET", "/zones/{zone}/events", handlers.events, "List or follow a zone's events, oldest first", LIFECYCLE,
            stream_event=EventView, tags=("events",), description=EVENTS_DESCRIPTION,
            errors=("zone_not_found", "invalid_last_event_id", "too_many_streams", "draining"),
        )
    ]  # fmt: skip
