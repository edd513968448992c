"""Base classes for the resource clients: transport, zone, and iteration over pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TypeVar

from quarterdeck.client.api import Query, build_path
from quarterdeck.core.ids import new_id
from quarterdeck.sdk.transport import ApiCall, Transport
from quarterdeck.sdk.types import Page
from quarterdeck.sdk.work_types import WorkPage

T = TypeVar("T")
PAGE_SIZE = 100
WORK_PAGE_SIZE = 500


class Resource:
    """Calls to one kind of resource in one zone."""

    def __init__(self, transport: Transport, zone: str) -> None:
        self._transport = transport
        self._zone = zone

    def _path(self, *segments: str) -> str:
        return build_path("zones", self._zone, *segments)

    async def _call(self, call: ApiCall, response_type: type[T]) -> T:
        return await self._transport.call(call, response_type)

    async def _get(self, path: str, response_type: type[T]) -> T:
        return await self._transport.call(ApiCall("GET", path), response_type)

    async def _iter_items(self, path: str, query: Query, response_type: type[Page[T]]) -> AsyncGenerator[T, None]:
        """Yield every item. Pages are requested as they are needed."""
        cursor: str | None = None
        while True:
            page = await self._call(
                ApiCall("GET", path, {**query, "limit": PAGE_SIZE, "cursor": cursor}), response_type
            )
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor


class WorkResource(Resource):
    """Calls to one kind of work-plane resource. Work-plane routes take the zone from a header."""

    def _path(self, *segments: str) -> str:
        return build_path("api", "v1", *segments)

    async def _call_in_zone(self, call: ApiCall, response_type: type[T]) -> T:
        return await self._transport.call(replace(call, zone=self._zone), response_type)

    async def _send_in_zone(self, call: ApiCall) -> None:
        """Make a call whose response has no content."""
        await self._transport.send(replace(call, zone=self._zone))

    async def _iter_items_in_zone(
        self, path: str, query: Query, response_type: type[WorkPage[T]]
    ) -> AsyncGenerator[T, None]:
        cursor: str | None = None
        while True:
            page = await self._call_in_zone(
                ApiCall("GET", path, {"limit": WORK_PAGE_SIZE, **query, "cursor": cursor}), response_type
            )
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor


def ensure_key(key: str | None) -> str:
    """The caller's idempotency key, or a new one. Every retry of the call uses the same key."""
    return new_id() if key is None else key
