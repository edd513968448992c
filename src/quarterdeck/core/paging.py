"""Opaque cursors.

A cursor holds the sort key after which the next page begins, not a row id, so it stays valid when the row it was made
from is deleted. It also holds the name of the listing, so that a cursor of another list is refused instead of returning
a wrong page.
"""

from __future__ import annotations

import base64
import binascii
import re

from quarterdeck.core.errors import Invalid

_CURSOR_PATTERN = re.compile(r"[A-Za-z0-9_\-]{1,512}")


def encode(listing: str, after: str) -> str:
    return base64.urlsafe_b64encode(f"{listing}\n{after}".encode()).rstrip(b"=").decode()


def decode(listing: str, cursor: str) -> str:
    """The sort key in a cursor. Raises `Invalid` for a cursor of another listing."""
    if _CURSOR_PATTERN.fullmatch(cursor):
        try:
            text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        name, newline, after = text.partition("\n")
        if name == listing and newline and after and after.isprintable():
            return after
    raise Invalid("invalid_cursor", "This cursor does not belong to this list.", field="cursor")


def trim_page(sort_keys: list[str], limit: int) -> tuple[int, str | None]:
    """From the sort keys of up to `limit + 1` rows: how many to return, and the key the next page starts after."""
    if len(sort_keys) <= limit:
        return len(sort_keys), None
    return limit, sort_keys[limit - 1]
