"""A tree of sessions, drawn. Pure: the sessions, the time and the colours are arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from quarterdeck.cli.output import TextStyler, cell, instant, pad, span, width
from quarterdeck.client.api import Document

T = TypeVar("T")


class TreeGlyphs(NamedTuple):
    """The four pieces of which branches are drawn."""

    tee: str
    corner: str
    bar: str
    blank: str


UNICODE_GLYPHS = TreeGlyphs("├─ ", "└─ ", "│  ", "   ")
ASCII_GLYPHS = TreeGlyphs("|- ", "`- ", "|  ", "   ")
"""For a terminal that cannot show the others."""


def draw(items: Sequence[Document], now: float, styler: TextStyler, glyphs: TreeGlyphs = UNICODE_GLYPHS) -> str:
    """One line per session: id, application, status, age, and how long it may still live."""
    rows = list(_tree_rows(items, glyphs))
    # Each piece of a branch is one column per character, so only the ids need measuring.
    headers = [
        (branch + name, len(branch) + width(name)) for branch, session in rows for name in [cell(session.get("id"))]
    ]
    tails = [_format_columns(session, now) for _, session in rows]
    head_width = max((columns for _, columns in headers), default=0)
    widths = [max(map(width, column)) for column in zip(*tails, strict=True)]
    output_lines = []
    for (head, columns), tail in zip(headers, tails, strict=True):
        start = head + " " * (head_width - columns)
        status = tail[1]
        cells = [pad(text, column_width) for text, column_width in zip(tail, widths, strict=True)]
        if status == "terminated":
            output_lines.append(styler.dim("  ".join([start, *cells]).rstrip()))
        else:
            cells[1] = styler.status(status, cells[1])
            output_lines.append("  ".join([start, *cells]).rstrip())
    return "\n".join(output_lines)


def age_and_lifetime(session: Document, now: float) -> tuple[str, str]:
    """How old a session is (or was), and how long it may still live; for how long it has been asleep, if it is."""
    spawned_at = instant(session.get("spawned_at")) or now
    ended_at = instant(session.get("terminated_at"))
    expires_at = instant(session.get("expires_at"))
    if ended_at is not None or session.get("status") == "terminated":
        return span((ended_at or now) - spawned_at), "ended"
    lifetime = "no end" if expires_at is None else f"{span(expires_at - now)} left"
    # Said in words as well as by the status and its colour: it looks alive, and will do nothing until it is resumed.
    suspended_at = instant(session.get("suspended_at")) if session.get("status") == "suspended" else None
    return span(
        now - spawned_at
    ), lifetime if suspended_at is None else f"{lifetime}, asleep {span(now - suspended_at)}"


def _format_columns(session: Document, now: float) -> tuple[str, str, str, str]:
    age, lifetime = age_and_lifetime(session, now)
    return cell(session.get("application_id")), cell(session.get("status")), age, lifetime


def _tree_rows(items: Sequence[Document], glyphs: TreeGlyphs) -> Iterator[tuple[str, Document]]:
    """Each session with the branch before it, depth first, children in the order given. A stack, not
    recursion: a tree may be deeper than Python's."""
    session_ids = {str(item.get("id")) for item in items}
    children: dict[str, list[Document]] = {}
    roots: list[Document] = []
    for item in items:
        parent = str(item.get("parent_id"))
        # A session whose parent is not in the answer is where the drawing begins.
        (children.setdefault(parent, []) if parent in session_ids else roots).append(item)
    stack = [(root, "", "") for root in reversed(roots)]
    while stack:
        session, branch, indent = stack.pop()
        yield branch, session
        stack += child_entries(children.get(str(session.get("id")), []), indent, glyphs)


def child_entries(children: Sequence[T], indent: str, glyphs: TreeGlyphs) -> list[tuple[T, str, str]]:
    """What to push for what stands below one line, each with its own branch and the indent of what is below it: the
    last one first, because a stack gives them back reversed."""
    entries = []
    for index, child in enumerate(reversed(children)):
        connector, continuation = (glyphs.corner, glyphs.blank) if index == 0 else (glyphs.tee, glyphs.bar)
        entries.append((child, indent + connector, indent + continuation))
    return entries


def glyphs_for(encoding: str | None) -> TreeGlyphs:
    return UNICODE_GLYPHS if (encoding or "").lower().replace("-", "") in ("utf8", "utf16") else ASCII_GLYPHS
