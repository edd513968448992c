"""Opaque cursors for paged listings.

A cursor holds the sort key after which the next page begins. It refers to no row, so it stays valid when the last row
of the page is deleted. It also holds the name of the listing, so that a cursor from a different listing is refused
instead of returning a wrong page.
"""

from __future__ import annotations

import base64
import binascii
import re

from quarterdeck.core.errors import Invalid

_CURSOR_PATTERN = re.compile(r"[A-Za-z0-9_\-]{1,512}")


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


def trim_page(sort_keys: list[str], limit: int) -> tuple[int, str | None]:
    """How many rows to return, and the sort key after which the next page begins. None if this page is the last.

    `sort_keys` are those of up to `limit + 1` rows. The extra row shows that there is a next page.
    """
    if len(sort_keys) <= limit:
        return len(sort_keys), None
    return limit, sort_keys[limit - 1]
