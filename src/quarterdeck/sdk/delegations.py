"""Delegations: authority that one session lends to another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from quarterdeck.sdk.options import DelegateOptions
from quarterdeck.sdk.resource import Resource, encode_options, ensure_key
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.types import Authority, Delegation, DelegationStatus, Page, Revoked


class Delegations(Resource):
    async def create(
        self, source: str, target: str, *, key: str | None = None, **options: Unpack[DelegateOptions]
    ) -> Delegation:
        """Lend authority from session `source` to session `target`. A session cannot lend more than it has."""
        body = {"source_session_id": source, "target_session_id": target, **encode_options(DelegateOptions, options)}
        return await self._call(ApiCall("POST", self._path("delegations"), body=body, key=ensure_key(key)), Delegation)

    async def get(self, edge_id: str) -> Delegation:
        return await self._get(self._path("delegations", edge_id), Delegation)

    def list(
        self, *, source: str | None = None, target: str | None = None, status: DelegationStatus | None = None
    ) -> AsyncIterator[Delegation]:
        """Iterate over delegations, newest first."""
        filters = {"source": source, "target": target, "status": status}
        return self._iter_items(self._path("delegations"), filters, Page[Delegation])

    async def revoke(self, edge_id: str, *, keep_sessions: bool = False) -> Revoked:
        """Revoke an edge and all edges derived from it, and terminate the sessions that lose their authority.

        With `keep_sessions`, these sessions keep running without that authority.
        """
        return await self._call(
            ApiCall("DELETE", self._path("delegations", edge_id), {"keep_sessions": keep_sessions}, is_idempotent=True),
            Revoked,
        )

    async def authority(self, session_id: str) -> Authority:
        """A session's authority, and the edges that grant it."""
        return await self._get(self._path("agents", session_id, "authority"), Authority)
