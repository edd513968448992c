"""The coordinator: its status, log and strategy. For zone administrators."""

from __future__ import annotations

from collections.abc import AsyncIterator

from quarterdeck.sdk.resource import WorkResource
from quarterdeck.sdk.work_types import (
    CoordinatorLine,
    CoordinatorStatus,
    Level,
    Recovered,
    Strategy,
    StrategyChosen,
    WorkPage,
)


class Coordinator(WorkResource):
    async def status(self) -> CoordinatorStatus:
        return await self._get(self._path("coordinator", "status"), CoordinatorStatus)

    async def recover(self) -> Recovered:
        """Run recovery in this zone now. Returns how many items of each kind were repaired."""
        body = {"workspaceId": self._zone}
        return await self._change("POST", self._path("coordinator", "recover"), Recovered, body)

    def logs(self, *, level: Level | None = None) -> AsyncIterator[CoordinatorLine]:
        """Iterate over the coordinator's log, newest first."""
        return self._iter_items(self._path("coordinator", "logs"), {"level": level}, WorkPage[CoordinatorLine])

    async def strategy(self) -> Strategy:
        """The order in which ready tasks are claimed."""
        return (await self._get(self._path("coordinator", "strategy"), StrategyChosen)).strategy

    async def choose(self, strategy: Strategy) -> Strategy:
        """Set the order in which ready tasks are claimed."""
        path = self._path("coordinator", "strategy")
        return (await self._change("PUT", path, StrategyChosen, {"strategy": strategy})).strategy
