"""An event in the log, for code that renders events without importing the engine."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import Millis


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A row of the log, in the order of the select lists in `engine/queries.sql`."""

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
