"""Admin routes for the Redis mirror of tasks and agents: its state, and a rebuild.

These routes need the scope `quarterdeck.admin`, because the keys cover all zones.
"""

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
            description="`whole`: all keys are written; `building`: a rebuild is running; `missing`: no rebuild has "
            "started yet; `not_configured`: the server has no Redis"
        ),
    ]
    written: Annotated[int | None, Meta(description="keys that were missing or wrong at the last complete rebuild")]
    repairs: Annotated[int, Meta(description="keys that this server has repaired since it started")]


@dataclass(frozen=True, slots=True)
class RedisHandlers:
    mirror: KeyMirror | None
    """None if Redis is not configured."""
    check_bearer: Callable[[Caller], Awaitable[None]]
    wake_mirror: Callable[[], None]
    """Wakes the leader loop of the mirror in this process and in others."""

    async def show(self, call: Call[None, None]) -> RedisView:
        await self.check_bearer(call.caller)
        if self.mirror is None:
            return RedisView("not_configured", None, 0)
        return await _build_view(self.mirror, self.mirror.read_state())

    async def rebuild(self, call: Call[None, None]) -> RedisView:
        await self.check_bearer(call.caller)
        if self.mirror is None:
            raise Conflict("redis_not_configured", "This server has no Redis. Set REDIS_URL.")
        return await _build_view(self.mirror, self.mirror.rebuild(self.wake_mirror))


async def _build_view(mirror: KeyMirror, pending_marker: Awaitable[str]) -> RedisView:
    """Build the view from the mirror's marker: a state, and for a complete mirror the sink's id and a key count."""
    try:
        marker = await pending_marker
    except BusUnavailable as error:
        # The original error may contain the address of Redis, which callers must not see.
        raise Unavailable("redis_away", "Redis cannot be reached or does not accept writes.") from error
    state, _, details = marker.partition(" ")
    written = details.rpartition(" ")[2]
    return RedisView(
        state if state in (COMPLETE, BUILDING) else "missing",
        int(written) if state == COMPLETE and re.fullmatch("[0-9]{1,18}", written) else None,
        mirror.repair_count,
    )


def routes(handlers: RedisHandlers) -> list[Route]:
    tags, unavailable = ("sinks",), ("redis_away",)
    return [
        Route(
            "GET", "/redis", handlers.show, "Show the state of the Redis mirror", ADMIN, errors=unavailable, tags=tags,
        ),
        Route(
            "POST", "/redis/rebuild", handlers.rebuild, "Rebuild the Redis mirror of tasks and agents", ADMIN,
            errors=("redis_not_configured", *unavailable), tags=tags,
            description="Writes the keys of all tasks and agents in the database and deletes all other keys of the "
            "mirror, while the server keeps working. Responds when the rebuild is complete, or after 14 seconds with "
            "`building`: the rebuild then continues in the background.",
        ),
    ]  # fmt: skip
