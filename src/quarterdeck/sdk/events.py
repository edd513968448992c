"""The event log of a zone, as a list or as a stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from quarterdeck.sdk.errors import LogReset
from quarterdeck.sdk.event_stream import AsyncEventStream
from quarterdeck.sdk.resource import Resource
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.types import Event, EventPage

PAGE_SIZE = 500
_decoder = msgspec.json.Decoder(Event)


class Events(Resource):
    async def list(
        self, *, after: int = 0, types: Sequence[str] = (), subject: str | None = None
    ) -> AsyncIterator[Event]:
        """Iterate over the events after a position up to the current end of the log, oldest first."""
        position: int | None = after
        while position is not None:
            query = {**_build_filters(types, subject), "after": position, "limit": PAGE_SIZE}
            page = await self._call(ApiCall("GET", self._path("events"), query), EventPage)
            for event in page.items:
                yield event
            position = page.next_after

    async def follow(
        self, *, after: int | None = None, types: Sequence[str] = (), subject: str | None = None
    ) -> AsyncIterator[Event]:
        """Iterate over events as they happen, endlessly. Starts after the position `after`, or with the next event.

        Reconnects when a connection is lost, and misses no event. Raises `LogReset` if events that follow the
        position have been deleted from the log.
        """
        stream = AsyncEventStream(
            self._transport, self._path("events"), {**_build_filters(types, subject), "after": after}
        )
        async with contextlib.aclosing(stream.messages()) as messages:
            async for message in messages:
                if message.event == "reset":
                    raise LogReset(int(message.id))
                yield _decoder.decode(message.data)


def _build_filters(types: Sequence[str], subject: str | None) -> dict[str, str | int | bool | None]:
    return {"types": ",".join(types) or None, "subject": subject}
