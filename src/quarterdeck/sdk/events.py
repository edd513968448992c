"""The log: what happened in a zone, as a list or as it happens."""

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
        """What is in the log, oldest first, from behind a position to the end there is now."""
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
        """What happens, as it happens, without an end: from behind a position, or from now on. Connections that are cut
        are made again, and nothing is missed by it; where the log no longer holds what was missed, `LogReset` is
        raised."""
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
