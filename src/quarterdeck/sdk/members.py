"""Members: who may do what in a zone."""

from __future__ import annotations

from collections.abc import AsyncIterator

from quarterdeck.sdk.resource import WorkRoom
from quarterdeck.sdk.transport import Ask
from quarterdeck.sdk.work_types import Member, Role, WorkPage


class Members(WorkRoom):
    def list(self) -> AsyncIterator[Member]:
        """In the order of their names."""
        return self._pages(self._path("members"), {}, WorkPage[Member])

    async def get(self, subject: str) -> Member:
        return await self._ask(Ask("GET", self._path("members", subject)), Member)

    async def put(self, subject: str, role: Role) -> Member:
        """Makes somebody a member, or gives them another role. Only an OWNER makes or unmakes an OWNER."""
        ask = Ask("PUT", self._path("members", subject), body={"role": role}, repeats=True)
        return await self._ask(ask, Member)

    async def remove(self, subject: str) -> None:
        """Not repeated after a lost answer: it would not be found."""
        await self._tell(Ask("DELETE", self._path("members", subject)))
