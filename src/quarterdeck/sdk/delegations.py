"""Delegations: authority that one session lends to another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from quarterdeck.sdk.options import DelegateOptions, told
from quarterdeck.sdk.resource import Room, own_key
from quarterdeck.sdk.transport import Ask
from quarterdeck.sdk.types import Authority, Delegation, DelegationStatus, Page, Revoked


class Delegations(Room):
    async def create(
        self, source: str, target: str, *, key: str | None = None, **options: Unpack[DelegateOptions]
    ) -> Delegation:
        """Lends authority of the session `source` to the session `target`: never more than it has."""
        body = {"source_session_id": source, "target_session_id": target, **told(DelegateOptions, options)}
        return await self._call(Ask("POST", self._path("delegations"), body=body, key=own_key(key)), Delegation)

    async def get(self, edge_id: str) -> Delegation:
        return await self._get(self._path("delegations", edge_id), Delegation)

    def list(
        self, *, source: str | None = None, target: str | None = None, status: DelegationStatus | None = None
    ) -> AsyncIterator[Delegation]:
        """Newest first."""
        wanted = {"source": source, "target": target, "status": status}
        return self._listed(self._path("delegations"), wanted, Page[Delegation])

    async def revoke(self, edge_id: str, *, keep_sessions: bool = False) -> Revoked:
        """Takes an edge back, with all that are derived from it, and ends whoever is left without authority. With
        `keep_sessions` they run on without it."""
        return await self._call(
            Ask("DELETE", self._path("delegations", edge_id), {"keep_sessions": keep_sessions}, repeats=True), Revoked
        )

    async def authority(self, session_id: str) -> Authority:
        """By which edges a session holds what."""
        return await self._get(self._path("agents", session_id, "authority"), Authority)
