"""The coordinator: what it looks after, and what it did. For administrators of a zone."""

from __future__ import annotations

from collections.abc import AsyncIterator

from quarterdeck.sdk.resource import WorkRoom
from quarterdeck.sdk.transport import Ask
from quarterdeck.sdk.work_types import (
    CoordinatorLine,
    CoordinatorStatus,
    Level,
    Recovered,
    Strategy,
    StrategyChosen,
    WorkPage,
)


class Coordinator(WorkRoom):
    async def status(self) -> CoordinatorStatus:
        return await self._ask(Ask("GET", self._path("coordinator", "status")), CoordinatorStatus)

    async def recover(self) -> Recovered:
        """Looks now for whatever is to be put right in this zone, and says how much was."""
        body = {"workspaceId": self._zone}
        path = self._path("coordinator", "recover")
        return await self._ask(Ask("POST", path, body=body, repeats=True), Recovered)

    def logs(self, *, level: Level | None = None) -> AsyncIterator[CoordinatorLine]:
        """Newest first."""
        return self._pages(self._path("coordinator", "logs"), {"level": level}, WorkPage[CoordinatorLine])

    async def strategy(self) -> Strategy:
        """In which order tasks are given out."""
        path = self._path("coordinator", "strategy")
        return (await self._ask(Ask("GET", path), StrategyChosen)).strategy

    async def choose(self, strategy: Strategy) -> Strategy:
        ask = Ask("PUT", self._path("coordinator", "strategy"), body={"strategy": strategy}, repeats=True)
        return (await self._ask(ask, StrategyChosen)).strategy
