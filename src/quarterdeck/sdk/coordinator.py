"""The coordinator: what it looks after, and what it did. For administrators of a zone."""

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
        """Looks now for whatever is to be put right in this zone, and says how much was."""
        body = {"workspaceId": self._zone}
        path = self._path("coordinator", "recover")
        return await self._call_in_zone(ApiCall("POST", path, body=body, is_idempotent=True), Recovered)

    def logs(self, *, level: Level | None = None) -> AsyncIterator[CoordinatorLine]:
        """Newest first."""
        return self._iter_items_in_zone(self._path("coordinator", "logs"), {"level": level}, WorkPage[CoordinatorLine])

    async def strategy(self) -> Strategy:
        """In which order tasks are given out."""
        path = self._path("coordinator", "strategy")
        return (await self._call_in_zone(ApiCall("GET", path), StrategyChosen)).strategy

    async def choose(self, strategy: Strategy) -> Strategy:
        call = ApiCall("PUT", self._path("coordinator", "strategy"), body={"strategy": strategy}, is_idempotent=True)
        return (await self._call_in_zone(call, StrategyChosen)).strategy
