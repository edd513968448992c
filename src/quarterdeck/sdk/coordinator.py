"""The coordinator: its status, log and strategy. For zone administrators."""

from __future__ import annotations

from collections.abc import AsyncIterator

from quarterdeck.sdk.resource import WorkResource
from quarterdeck.sdk.transport import ApiCall
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
        return await self._call_in_zone(ApiCall("GET", self._path("coordinator", "status")), CoordinatorStatus)

    async def recover(self) -> Recovered:
        """Run recovery in this zone now. Returns how many items of each kind were repaired."""
        body = {"workspaceId": self._zone}
        path = self._path("coordinator", "recover")
        return await self._call_in_zone(ApiCall("POST", path, body=body, is_idempotent=True), Recovered)

    def logs(self, *, level: Level | None = None) -> AsyncIterator[CoordinatorLine]:
        """Iterate over the coordinator's log, newest first."""
        return self._iter_items_in_zone(self._path("coordinator", "logs"), {"level": level}, WorkPage[CoordinatorLine])

    async def strategy(self) -> Strategy:
        """The order in which ready tasks are claimed."""
        path = self._path("coordinator", "strategy")
        return (await self._call_in_zone(ApiCall("GET", path), StrategyChosen)).strategy

    async def choose(self, strategy: Strategy) -> Strategy:
        """Set the order in which ready tasks are claimed."""
        call = ApiCall("PUT", self._path("coordinator", "strategy"), body={"strategy": strategy}, is_idempotent=True)
        return (await self._call_in_zone(call, StrategyChosen)).strategy
