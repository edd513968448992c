"""HTML elements. All text is escaped, except for markup that this module built."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

VOID_ELEMENTS = frozenset({"meta", "link", "br", "wbr"})
_BACKTICKS = re.compile(r"`([^`]+)`")


class Html(str):
    """Text that is already markup. Only this module creates it."""

    __slots__ = ()


EMPTY = Html()


def el(name: str, /, *children: str, **attributes: str) -> Html:
    """Build an element. `class_` becomes `class`, `aria_label` becomes `aria-label`. Empty attributes are left out."""
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items() if value
    )
    if name in VOID_ELEMENTS:
        return Html(f"<{name}{attribute_text}>")
    return Html(f"<{name}{attribute_text}>{join_html(children)}</{name}>")


def join_html(parts: Iterable[str], separator: str = "") -> Html:
    """Join parts. Escapes each part unless it is markup."""
    return Html(_escape_text(separator).join(_escape_text(part) for part in parts))


def format_prose(text: str) -> Html:
    """Escape text, and turn `backticks` into code elements."""
    pieces = _BACKTICKS.split(text)
    return join_html(el("code", piece) if index % 2 else piece for index, piece in enumerate(pieces))


def link(target: str, *children: str, **attributes: str) -> Html:
    """A link within this page. The page has no other links."""
    return el("a", *children, href=f"#{target}", **attributes)


def stylesheet(css: str) -> Html:
    """The page's own style. CSS must not be escaped, so it must not contain an end tag."""
    if "</" in css:
        raise ValueError("a stylesheet must not contain an end tag")
    return Html(f"<style>{css}</style>")


def document(head: Html, body: Html) -> bytes:
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'.encode()


def to_anchor(text: str) -> str:
    """Convert text to an anchor: letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()


def _escape_text(part: str) -> str:
    return part if isinstance(part, Html) else escape(part)
