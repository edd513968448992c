"""The keys of tasks and agents in Redis as routes: whether all of them were written, and to have that done anew. For
administrators of the whole server: the keys are of every zone."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.bus.redis.interfaces import BusUnavailable
from quarterdeck.core.caller import ADMIN, Caller
from quarterdeck.core.errors import Conflict, Unavailable
from quarterdeck.core.routing import Call, Route
from quarterdeck.engine.mirrors.keys import BUILDING, COMPLETE, KeyMirror


class RedisView(msgspec.Struct, frozen=True):
    state: Annotated[
        str,
        Meta(
            description="`whole`: everything was written; `building`: somebody is at it; `missing`: nobody is yet; "
            "`not_configured`: the server was told of no Redis"
        ),
    ]
    written: Annotated[int | None, Meta(description="how much was missing or wrong when everything was last written")]
    repairs: Annotated[int, Meta(description="how much the server that answers has put right since it began")]


@dataclass(frozen=True, slots=True)
class RedisHandlers:
    mirror: KeyMirror | None
    """None where Redis is not configured."""
    check_bearer: Callable[[Caller], Awaitable[None]]
    wake_mirror: Callable[[], None]

    async def show(self, call: Call) -> RedisView:
        await self.check_bearer(call.caller)
        if self.mirror is None:
            return RedisView("not_configured", None, 0)
        return await _build_view(self.mirror, self.mirror.read_state())

    async def rebuild(self, call: Call) -> RedisView:
        await self.check_bearer(call.caller)
        if self.mirror is None:
            raise Conflict("redis_not_configured", "This server was not told of a Redis (REDIS_URL).")
        return await _build_view(self.mirror, self.mirror.rebuild(self.wake_mirror))


async def _build_view(mirror: KeyMirror, pending_state: Awaitable[str]) -> RedisView:
    try:
        state = await pending_state
    except BusUnavailable as error:
        # What Redis says of itself may name its address, which is nobody's business here.
        raise Unavailable("redis_away", "Redis cannot be reached, or takes nothing just now.") from error
    state_name, _, rest = state.partition(" ")
    written = rest.rpartition(" ")[2]
    return RedisView(
        state_name if state_name in (COMPLETE, BUILDING) else "missing",
        int(written) if state_name == COMPLETE and re.fullmatch("[0-9]{1,18}", written) else None,
        mirror.repairs,
    )


def routes(handlers: RedisHandlers) -> list[Route]:
    tags, unavailable = ("sinks",), ("redis_away",)
    return [
        Route(
            "GET", "/redis", handlers.show, "Show whether the keys in Redis are all there", ADMIN, response=RedisView,
            errors=unavailable, tags=tags,
        ),
        Route(
            "POST", "/redis/rebuild", handlers.rebuild, "Write the keys of tasks and agents in Redis anew", ADMIN,
            response=RedisView, errors=("redis_not_configured", *unavailable), tags=tags,
            description="Everything is written as the database has it, and what the database does not know is taken "
            "away, beside all other work. Answers when that is done, or after 14 seconds with `building`: then it goes "
            "on by itself.",
        ),
    ]  # fmt: skip
