"""What every kind of client does: one deed after another, each drawn by chance, until the run is over."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping

from tests.support.plane.caller import Ask, Caller

Deed = Callable[[], Awaitable[object]]


class Client:
    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.chance = caller.chance
        self.known = caller.known
        self._numbers = itertools.count(1)

    def deeds(self) -> Mapping[Deed, int]:
        """What it may do next, and how often of all. One that finds nothing to do says so by giving nothing back."""
        raise NotImplementedError

    async def run(self) -> None:
        deeds = self.deeds()
        try:
            while not self.caller.stopping:
                [deed] = self.chance.choices([*deeds], [*deeds.values()])
                if not await deed():
                    await self.look_around()
        finally:
            await self.caller.close()

    async def look_around(self) -> None:
        """For whoever knows of nothing to do: who is there, and what waits?"""
        for path, known in (("/agents", self.known.sessions), ("/invocations", self.known.invocations)):
            reply = await self.caller.ask(Ask("list", "GET", f"{path}?limit=10"))
            items = reply.body.get("items") if reply.ok else None
            if isinstance(items, list):
                known += [item["id"] for item in items if item["id"] not in known]

    def fresh(self, word: str) -> str:
        """A name that nobody else uses."""
        return f"{self.caller.name}-{word}-{next(self._numbers)}"
