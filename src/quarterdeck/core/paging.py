"""Paged lists: their query, their response, and opaque cursors.

A cursor holds the sort key after which the next page begins. It refers to no row, so it stays valid when the last row
of the page is deleted. It also holds the name of the listing, so that a cursor from a different listing is refused
instead of returning a wrong page.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Generic, Protocol, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer
from quarterdeck.core.errors import Invalid
from quarterdeck.core.routing import Call, Reply

Row = TypeVar("Row")
View = TypeVar("View")
ListView = TypeVar("ListView")
Cursor = Annotated[str, Meta(max_length=512)]
_CURSOR_PATTERN = re.compile(r"[A-Za-z0-9_\-]{1,512}")


# No docstrings here: OpenAPI would show them. `http/openapi/schemas.py` names `Page[ServiceView]` `ServiceList`.
class Page(msgspec.Struct, Generic[View], frozen=True):
    items: list[View]
    next_cursor: str | None


class CamelPage(Page[View], Generic[View], frozen=True, rename="camel"):
    next_cursor: str | None


class PageQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None


class PageFields(TypedDict):
    """The fields of `PageFilter`."""

    zone_id: str
    limit: int
    before: str | None
    bearer: Bearer | None


class PageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a page of the rows of a zone, newest first. Subclasses add filters: None matches every row."""

    zone_id: str
    limit: int
    before: str | None = None
    bearer: Bearer | None = None


class PagedQuery(Protocol):
    """A query with the fields of `PageQuery`, in any order and with its own bounds."""

    @property
    def limit(self) -> int: ...

    @property
    def cursor(self) -> str | None: ...


def encode(listing: str, sort_key: str) -> str:
    return base64.urlsafe_b64encode(f"{listing}\n{sort_key}".encode()).rstrip(b"=").decode()


def decode(listing: str, cursor: str) -> str:
    """The sort key in a cursor. Raises `Invalid` if the cursor is malformed or belongs to a different listing."""
    if _CURSOR_PATTERN.fullmatch(cursor):
        try:
            text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        cursor_listing, newline, sort_key = text.partition("\n")
        if cursor_listing == listing and newline and sort_key and sort_key.isprintable():
            return sort_key
    raise Invalid("invalid_cursor", "This cursor does not belong to this list.", field="cursor")


# Without slots: `Listing[Row](…)` does not work for a frozen dataclass with slots in Python 3.11.
@dataclass(frozen=True)
class Listing(Generic[Row]):
    """A paged list: its name in cursors, and the sort key of a row."""

    name: str
    sort_key: Callable[[Row], str] = attrgetter("id")

    def start_key(self, query: PagedQuery) -> str | None:
        """The sort key after which the requested page begins. None for the first page."""
        return decode(self.name, query.cursor) if query.cursor else None

    def page_fields(self, call: Call[object, PagedQuery]) -> PageFields:
        """The fields of a `PageFilter`: `SessionFilter(**LISTING.page_fields(call), …)`. See `reply` for the limit."""
        return {
            "zone_id": call.zone_id,
            "limit": call.query.limit + 1,
            "before": self.start_key(call.query),
            "bearer": call.caller.bearer,
        }

    def reply(
        self,
        call: Call[object, PagedQuery],
        rows: Sequence[Row],
        view: Callable[[Row], View],
        build_list: Callable[[list[View], str | None], ListView],
        *,
        is_truncated: bool = False,
    ) -> Reply[ListView]:
        """Build the response of a list: `build_list(views, next_cursor)` and the `Link` header.

        `rows` are up to `limit + 1` rows. The extra row shows that there is a next page, and is not returned. With
        `is_truncated` there is a next page although there is no extra row.
        """
        page = rows[: call.query.limit]
        has_next = is_truncated or len(rows) > len(page)
        next_cursor = encode(self.name, self.sort_key(page[-1])) if has_next else None
        return Reply(build_list([view(row) for row in page], next_cursor), headers=call.next_link(next_cursor))
