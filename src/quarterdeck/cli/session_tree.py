"""Draws session trees. Pure: sessions, time and colors are arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from quarterdeck.cli.output import TextStyler, cell, format_duration, pad, parse_timestamp, width
from quarterdeck.client.api import Document

T = TypeVar("T")


class TreeGlyphs(NamedTuple):
    """The four strings that draw the branches of a tree."""

    tee: str
    corner: str
    bar: str
    blank: str


UNICODE_GLYPHS = TreeGlyphs("├─ ", "└─ ", "│  ", "   ")
ASCII_GLYPHS = TreeGlyphs("|- ", "`- ", "|  ", "   ")
"""For an output encoding without box-drawing characters."""


def draw(items: Sequence[Document], now: float, styler: TextStyler, glyphs: TreeGlyphs = UNICODE_GLYPHS) -> str:
    """Draw one line per session: id, application, status, age and time to expiry."""
    rows = list(_tree_rows(items, glyphs))
    # Each character of a branch takes one column, so only the ids need measuring.
    heads = [
        (branch + session_id, len(branch) + width(session_id))
        for branch, session in rows
        for session_id in [cell(session.get("id"))]
    ]
    tails = [_format_columns(session, now) for _, session in rows]
    head_width = max((columns for _, columns in heads), default=0)
    widths = [max(map(width, column)) for column in zip(*tails, strict=True)]
    output_lines = []
    for (head, columns), tail in zip(heads, tails, strict=True):
        cells = [pad(text, column_width) for text, column_width in zip(tail, widths, strict=True)]
        status, is_ended = tail[1], tail[1] == "terminated"
        cells[1] = cells[1] if is_ended else styler.color_by_status(status, cells[1])
        line = "  ".join([head + " " * (head_width - columns), *cells]).rstrip()
        output_lines.append(styler.dim(line) if is_ended else line)
    return "\n".join(output_lines)


def age_and_expiry(session: Document, now: float) -> tuple[str, str]:
    """Format the age of a session and its time to expiry, with the time since its suspension if it is suspended."""
    spawned_at = parse_timestamp(session.get("spawned_at")) or now
    ended_at = parse_timestamp(session.get("terminated_at"))
    expires_at = parse_timestamp(session.get("expires_at"))
    if ended_at is not None or session.get("status") == "terminated":
        return format_duration((ended_at or now) - spawned_at), "ended"
    expiry = "no expiry" if expires_at is None else f"{format_duration(expires_at - now)} left"
    # The expiry alone would mislead: the session has time left but starts nothing until it is resumed.
    suspended_at = parse_timestamp(session.get("suspended_at")) if session.get("status") == "suspended" else None
    suspension = "" if suspended_at is None else f", suspended for {format_duration(now - suspended_at)}"
    return format_duration(now - spawned_at), expiry + suspension


def _format_columns(session: Document, now: float) -> tuple[str, str, str, str]:
    age, expiry = age_and_expiry(session, now)
    return cell(session.get("application_id")), cell(session.get("status")), age, expiry


def _tree_rows(items: Sequence[Document], glyphs: TreeGlyphs) -> Iterator[tuple[str, Document]]:
    """Yield each session with its branch, depth first, children in the order of `items`."""
    session_ids = {str(item.get("id")) for item in items}
    children: dict[str, list[Document]] = {}
    roots: list[Document] = []
    for item in items:
        parent = str(item.get("parent_id"))
        # A session whose parent is not in the response is drawn as a root.
        (children.setdefault(parent, []) if parent in session_ids else roots).append(item)
    for root in roots:
        yield "", root
        yield from walk(
            children.get(str(root.get("id")), ()), lambda item: children.get(str(item.get("id")), ()), glyphs
        )


def walk(
    top: Sequence[T], children_of: Callable[[T], Sequence[T]], glyphs: TreeGlyphs, indent: str = ""
) -> Iterator[tuple[str, T]]:
    """Yield the lines below a line, depth first: the branch drawn before each item, and the item.

    Uses a stack, not recursion: a tree may be deeper than Python's recursion limit. `children_of` is called after its
    item was yielded.
    """
    stack = _child_entries(top, indent, glyphs)
    while stack:
        item, branch, child_indent = stack.pop()
        yield branch, item
        stack += _child_entries(children_of(item), child_indent, glyphs)


def _child_entries(children: Sequence[T], indent: str, glyphs: TreeGlyphs) -> list[tuple[T, str, str]]:
    """Build stack entries for the children of a line: child, its branch, and the indent of its own children.

    The last child comes first, because a stack returns entries in reverse order.
    """
    last = [(child, indent + glyphs.corner, indent + glyphs.blank) for child in children[-1:]]
    return last + [(child, indent + glyphs.tee, indent + glyphs.bar) for child in children[-2::-1]]


def glyphs_for(encoding: str | None) -> TreeGlyphs:
    return UNICODE_GLYPHS if (encoding or "").lower().replace("-", "") in ("utf8", "utf16") else ASCII_GLYPHS
