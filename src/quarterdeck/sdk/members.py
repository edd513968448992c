"""Members of a zone: subjects and their roles."""

from __future__ import annotations

from collections.abc import AsyncIterator

from quarterdeck.sdk.resource import WorkResource
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.work_types import Member, Role, WorkPage


class Members(WorkResource):
    def list(self) -> AsyncIterator[Member]:
        """Iterate over members, ordered by subject."""
        return self._iter_items(self._path("members"), {}, WorkPage[Member])

    async def get(self, subject: str) -> Member:
        return await self._get(self._path("members", subject), Member)

    async def put(self, subject: str, role: Role) -> Member:
        """Add a member, or change a member's role. Only an OWNER can grant or revoke the role OWNER."""
        return await self._change("PUT", self._path("members", subject), Member, {"role": role})

    async def remove(self, subject: str) -> None:
        """Remove a member. Not retried after a lost response, because a repeated call would raise `NotFound`."""
        await self._send(ApiCall("DELETE", self._path("members", subject)))
