"""Elements. Text is escaped where it enters one; only what this module made passes as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

VOID = frozenset({"meta", "link", "br", "wbr"})
_CODE = re.compile(r"`([^`]+)`")


class Html(str):
    """Text that is markup already. Made by this module, by nobody else."""

    __slots__ = ()


EMPTY = Html()


def el(name: str, /, *children: str, **attributes: str) -> Html:
    """An element. `class_` is the attribute class, `aria_label` is aria-label; one that is empty is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items() if value
    )
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def joined(parts: Iterable[str], between: str = "") -> Html:
    """Parts one after the other, each escaped unless it is markup."""
    return Html(_safe(between).join(_safe(part) for part in parts))


def prose(text: str) -> Html:
    """A sentence in which `backticks` mean code."""
    pieces = _CODE.split(text)
    return joined(el("code", piece) if index % 2 else piece for index, piece in enumerate(pieces))


def link(place: str, *children: str, **attributes: str) -> Html:
    """A link to another place on this page; there are no others."""
    return el("a", *children, href=f"#{place}", **attributes)


def stylesheet(css: str) -> Html:
    """The page's own style. It is ours, and may not be escaped; it must only not end its element early."""
    if "</" in css:
        raise ValueError("a stylesheet may not hold an end tag")
    return Html(f"<style>{css}</style>")


def document(head: Html, body: Html) -> bytes:
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'.encode()


def anchor(text: str) -> str:
    """A text as the name of a place: letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()


def _safe(part: str) -> str:
    return part if isinstance(part, Html) else escape(part)
