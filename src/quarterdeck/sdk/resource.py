"""Base classes for the resource clients: transport, zone, iteration over pages, and the encoding of options."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import TypeVar

from quarterdeck.client.api import Query, build_path
from quarterdeck.core.ids import new_id
from quarterdeck.sdk.transport import ApiCall, Transport
from quarterdeck.sdk.type_mixins import Page, WorkPage

T = TypeVar("T")


class Resource:
    """Calls to one kind of resource in one zone."""

    _page_size = 100

    def __init__(self, transport: Transport, zone: str) -> None:
        self._transport = transport
        self._zone = zone

    def _path(self, *segments: str) -> str:
        return build_path("zones", self._zone, *segments)

    def _in_zone(self, call: ApiCall) -> ApiCall:
        """The call with its zone. Here the path contains the zone."""
        return call

    async def _call(self, call: ApiCall, response_type: type[T]) -> T:
        return await self._transport.call(self._in_zone(call), response_type)

    async def _get(self, path: str, response_type: type[T]) -> T:
        return await self._call(ApiCall("GET", path), response_type)

    async def _change(self, method: str, path: str, response_type: type[T], body: object = None) -> T:
        """Make a call that ends in the same state if it is repeated."""
        return await self._call(ApiCall(method, path, body=body, is_idempotent=True), response_type)

    async def _send(self, call: ApiCall) -> None:
        """Make a call whose response has no content."""
        await self._transport.send(self._in_zone(call))

    async def _iter_items(
        self, path: str, query: Query, response_type: type[Page[T]] | type[WorkPage[T]]
    ) -> AsyncGenerator[T, None]:
        """Yield every item. Pages are requested as they are needed."""
        cursor: str | None = None
        while True:
            page_query = {"limit": self._page_size, **query, "cursor": cursor}
            page: Page[T] | WorkPage[T] = await self._call(ApiCall("GET", path, page_query), response_type)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor


class WorkResource(Resource):
    """Calls to one kind of work-plane resource. Work-plane routes take the zone from a header."""

    _page_size = 500

    def _path(self, *segments: str) -> str:
        return build_path("api", "v1", *segments)

    def _in_zone(self, call: ApiCall) -> ApiCall:
        return replace(call, zone=self._zone)


def ensure_key(key: str | None) -> str:
    """The caller's idempotency key, or a new one. Every retry of the call uses the same key."""
    return new_id() if key is None else key


def without_none(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields that are not None: the server applies its default for the others."""
    return {name: value for name, value in fields.items() if value is not None}


def encode_options(options_type: type, options: Mapping[str, object]) -> dict[str, object]:
    """The options that are not None. Raises TypeError for an unknown name, as Python does for a keyword argument."""
    unknown_names = options.keys() - options_type.__annotations__.keys()
    if unknown_names:
        allowed = ", ".join(sorted(options_type.__annotations__))
        raise TypeError(f"unexpected options: {', '.join(sorted(unknown_names))} (allowed: {allowed})")
    return without_none(options)


def encode_camel_options(
    options_type: type, options: Mapping[str, object], *, keep_none: bool = False
) -> dict[str, object]:
    """Like `encode_options`, but with work-plane names: `task_type` becomes `taskType`.

    With `keep_none`, None values are kept, because None clears a field.
    """
    encoded = {
        **encode_options(options_type, options),
        **({name: None for name in options if options[name] is None} if keep_none else {}),
    }
    return {to_camel(name): value for name, value in encoded.items()}


def to_camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)
