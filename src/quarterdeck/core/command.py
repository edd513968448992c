"""The base struct of the commands that are submitted to lanes."""

from __future__ import annotations

import msgspec

from quarterdeck.core.caller import Bearer, Caller

SERVER_ACTOR = "server"
"""The actor of a command without a caller."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is submitted to a lane. Without a caller, the server itself is the sender."""

    zone_id: str
    caller: Caller | None = None
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer if self.caller else None

    @property
    def actor(self) -> str:
        return self.caller.subject if self.caller else SERVER_ACTOR
