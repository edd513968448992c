"""The client's zone: quotas, freeze and stop."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.sdk.resource import Resource, without_none
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.types import Quotas, Receipt, Zone


class Zones(Resource):
    async def get(self) -> Zone:
        return await self._get(self._path(), Zone)

    async def put(self, *, name: str | None = None, quotas: Mapping[str, int | None] | None = None) -> Zone:
        """Create the zone, or change the given fields. For administrators."""
        body = without_none({"name": name, "quotas": None if quotas is None else dict(quotas)})
        return await self._change("PUT", self._path(), Zone, body)

    async def quotas(self) -> Quotas:
        """The limits of the zone and their current use."""
        return await self._get(self._path("quotas"), Quotas)

    async def freeze(self) -> Zone:
        """Refuse every spawn. Sessions that are already running continue. For administrators."""
        return await self._change("POST", self._path("freeze"), Zone)

    async def thaw(self) -> Zone:
        """Undo `freeze`. For administrators."""
        return await self._change("POST", self._path("thaw"), Zone)

    async def stop(self, *, reason: str | None = None) -> Receipt:
        """Emergency stop: freeze the zone and terminate every session in it. For administrators."""
        return await self._call(ApiCall("POST", self._path("stop"), {"reason": reason}, is_idempotent=True), Receipt)
