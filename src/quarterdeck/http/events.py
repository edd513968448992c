"""The log as a route: a zone's events, oldest first, from a position on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.wire import LIFECYCLE, Call, PathId, Route
from quarterdeck.domain.sessions.operations import require_bearer
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import events as log
from quarterdeck.engine.events import Event, EventFilter, EventView
from quarterdeck.engine.tx import Engine, Tx

TYPES = r"^[a-z_.]+(,[a-z_.]+)*$(?!\n)"


class EventsQuery(msgspec.Struct, frozen=True):
    after: Annotated[int, Meta(ge=0, le=2**63 - 1, description="the position after which to begin")] = 0
    limit: Annotated[int, Meta(ge=1, le=log.EVENTS_MAX)] = 100
    types: Annotated[str, Meta(pattern=TYPES, max_length=1_000, description="separated by commas")] | None = (
        None
    )
    subject: PathId | None = None


class EventList(msgspec.Struct, frozen=True):
    items: list[EventView]
    next_after: int | None
    """Where the next page begins; null when this one is the last so far."""


class LogDesk:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list_events(self, call: Call) -> EventList:
        query = call.query
        assert isinstance(query, EventsQuery)
        types = tuple(query.types.split(",")) if query.types else ()
        wanted = EventFilter(call.zone, query.after, query.limit + 1, types, query.subject)

        async def read(tx: Tx) -> list[Event]:
            await require_bearer(tx, call.zone, call.caller.session_id)
            events = await log.page(tx, wanted)
            if not events:
                await zones.require(tx, call.zone)
            return events

        found = await self._engine.read(read)
        shown = found[: query.limit]
        following = shown[-1].pos if len(found) > query.limit else None
        return EventList([log.view(event) for event in shown], following)


def routes(desk: LogDesk) -> list[Route]:
    return [
        Route(
            "GET", "/zones/{zone}/events", desk.list_events, "List a zone's events, oldest first", LIFECYCLE,
            query=EventsQuery, answer=EventList, tags=("events",),
        )
    ]  # fmt: skip
