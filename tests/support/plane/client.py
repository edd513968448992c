"""What every kind of client does: one deed after another, each drawn by chance, until the run is over."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping

from tests.support.plane.caller import Caller

Deed = Callable[[], Awaitable[None]]


class Client:
    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.chance = caller.chance
        self.known = caller.known
        self._numbers = itertools.count(1)

    def deeds(self) -> Mapping[Deed, int]:
        """What it may do next, and how often of all."""
        raise NotImplementedError

    async def run(self) -> None:
        deeds = self.deeds()
        try:
            while not self.caller.stopping:
                [deed] = self.chance.choices([*deeds], [*deeds.values()])
                await deed()
        finally:
            await self.caller.close()

    def fresh(self, word: str) -> str:
        """A name that nobody else uses."""
        return f"{self.caller.name}-{word}-{next(self._numbers)}"
