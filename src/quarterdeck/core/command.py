"""What everything has that is asked of a room, whoever asks."""

from __future__ import annotations

import msgspec

from quarterdeck.core.caller import Bearer, Caller

SERVER_ACTOR = "server"
"""Who acts where nobody has asked."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Without a caller it is the server that asks."""

    zone_id: str
    caller: Caller | None = None
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer if self.caller else None

    @property
    def actor(self) -> str:
        return self.caller.subject if self.caller else SERVER_ACTOR
