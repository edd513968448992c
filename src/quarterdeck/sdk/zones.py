"""The client's zone: quotas, freeze and stop."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.sdk.resource import Resource
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.types import Quotas, Receipt, Zone


class Zones(Resource):
    async def get(self) -> Zone:
        return await self._get(self._path(), Zone)

    async def put(self, *, name: str | None = None, quotas: Mapping[str, int | None] | None = None) -> Zone:
        """Create the zone, or change the given fields. For administrators."""
        body = {"name": name, "quotas": None if quotas is None else dict(quotas)}
        fields = {key: value for key, value in body.items() if value is not None}
        return await self._call(ApiCall("PUT", self._path(), body=fields, is_idempotent=True), Zone)

    async def quotas(self) -> Quotas:
        """The limits of the zone and their current use."""
        return await self._get(self._path("quotas"), Quotas)

    async def freeze(self) -> Zone:
        """Refuse every spawn. Sessions that are already running continue. For administrators."""
        return await self._call(ApiCall("POST", self._path("freeze"), is_idempotent=True), Zone)

    async def thaw(self) -> Zone:
        """Undo `freeze`. For administrators."""
        return await self._call(ApiCall("POST", self._path("thaw"), is_idempotent=True), Zone)

    async def stop(self, *, reason: str | None = None) -> Receipt:
        """Emergency stop: freeze the zone and terminate every session in it. For administrators."""
        return await self._call(ApiCall("POST", self._path("stop"), {"reason": reason}, is_idempotent=True), Receipt)
