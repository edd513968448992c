"""What the faces of a zone have in common: their server, their zone, and lists that come in pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TypeVar

from quarterdeck.client.api import Query, path_of
from quarterdeck.core.ids import new_id
from quarterdeck.sdk.transport import Ask, Remote
from quarterdeck.sdk.types import Page
from quarterdeck.sdk.work_types import WorkPage

T = TypeVar("T")
PAGE = 100
WORK_PAGE = 500


class Room:
    """One noun of one zone."""

    def __init__(self, remote: Remote, zone: str) -> None:
        self._remote = remote
        self._zone = zone

    def _path(self, *segments: str) -> str:
        return path_of("zones", self._zone, *segments)

    async def _call(self, ask: Ask, kind: type[T]) -> T:
        return await self._remote.call(ask, kind)

    async def _get(self, path: str, kind: type[T]) -> T:
        return await self._remote.call(Ask("GET", path), kind)

    async def _listed(self, path: str, query: Query, kind: type[Page[T]]) -> AsyncGenerator[T, None]:
        """Every item, page by page as they are asked for."""
        cursor: str | None = None
        while True:
            page = await self._call(Ask("GET", path, {**query, "limit": PAGE, "cursor": cursor}), kind)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor


class WorkRoom(Room):
    """One noun of the work plane, whose routes name their zone in a header."""

    def _path(self, *segments: str) -> str:
        return path_of("api", "v1", *segments)

    async def _ask(self, ask: Ask, kind: type[T]) -> T:
        return await self._remote.call(replace(ask, zone=self._zone), kind)

    async def _tell(self, ask: Ask) -> None:
        """For what is answered with nothing."""
        await self._remote.ask(replace(ask, zone=self._zone))

    async def _pages(self, path: str, query: Query, kind: type[WorkPage[T]]) -> AsyncGenerator[T, None]:
        cursor: str | None = None
        while True:
            page = await self._ask(Ask("GET", path, {"limit": WORK_PAGE, **query, "cursor": cursor}), kind)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor


def own_key(given: str | None) -> str:
    """The caller's idempotency key, or one of this call's own: either way every repetition bears the same."""
    return new_id() if given is None else given
