"""From the stamp to the last chunk: whoever asked, joined or sweeps settles until it is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.domain.sessions.model import Ended, Settle, Settled, StopZone, Terminate


@dataclass(frozen=True, slots=True)
class Finisher:
    """Endings seen through to their end: what routes and sweeps share, over the lanes they are handed."""

    terminate: Callable[[Terminate], Awaitable[Ended]]
    stop: Callable[[StopZone], Awaitable[Ended]]
    settle: Callable[[Settle], Awaitable[Settled]]

    async def end(self, ask: Terminate) -> Ended:
        return await self.see_through(await self.terminate(ask))

    async def stop_zone(self, ask: StopZone) -> Ended:
        return await self.see_through(await self.stop(ask))

    async def see_through(self, ended: Ended) -> Ended:
        """Settles chunk after chunk until nothing of it is left, beside whoever else does the same."""
        if ended.cascade_id is not None:
            await self.finish(ended.zone_id, ended.cascade_id)
        return ended

    async def finish(self, zone_id: str, cascade_id: str) -> None:
        while not (await self.settle(Settle(zone_id, cascade_id))).finished:
            pass
