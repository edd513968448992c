"""Task costs and budgets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date

from quarterdeck.sdk.resource import WorkResource, without_none
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.work_types import Budget, CostSum, GroupBy, Period, Scope, WorkPage


class Costs(WorkResource):
    def list(
        self, group_by: GroupBy = "workspace", *, since: date | None = None, until: date | None = None
    ) -> AsyncIterator[CostSum]:
        """Iterate over cost totals, one per group. `since` is inclusive and `until` exclusive, both in UTC."""
        query = {
            "groupBy": group_by,
            "since": None if since is None else since.isoformat(),
            "until": None if until is None else until.isoformat(),
        }
        return self._iter_items(self._path("costs"), query, WorkPage[CostSum])


class Budgets(WorkResource):
    def list(self) -> AsyncIterator[Budget]:
        return self._iter_items(self._path("budgets"), {}, WorkPage[Budget])

    async def put(
        self,
        scope: Scope,
        period: Period,
        *,
        key: str | None = None,
        usd: float | None = None,
        tokens: int | None = None,
    ) -> Budget:
        """Set a budget. When it is used up, the tasks it covers are not claimed until its next period starts."""
        body = without_none({"scope": scope, "period": period, "key": key, "usd": usd, "tokens": tokens})
        return await self._change("PUT", self._path("budgets"), Budget, body)

    async def remove(self, scope: Scope, period: Period, *, key: str | None = None) -> None:
        """Remove a budget. Not retried after a lost response, because a repeated call would raise `NotFound`."""
        query = {"scope": scope, "period": period, "key": key}
        await self._send(ApiCall("DELETE", self._path("budgets"), query))
