"""The base struct of the commands that are submitted to lanes.

If the commands of a lane have different results, each states its own. The base struct of these commands is generic:

    class BaseCommand(Command, Generic[R_co], frozen=True, kw_only=True): ...
    class Claim(BaseCommand[ClaimedTasks], frozen=True, kw_only=True): ...
    class Submit(Protocol):
        def __call__(self, command: BaseCommand[R], /) -> asyncio.Future[R]: ...

The component casts the lane's `submit` to this protocol, so that `await submit(claim)` is a `ClaimedTasks`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from quarterdeck.core.caller import Bearer, Caller

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
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
