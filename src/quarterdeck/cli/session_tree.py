"""A tree of sessions, drawn. Pure: the sessions, the time and the colours are arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from quarterdeck.cli.output import Paint, cell, instant, pad, span, width
from quarterdeck.client.api import Document

T = TypeVar("T")


class Lines(NamedTuple):
    """The four pieces of which branches are drawn."""

    tee: str
    corner: str
    bar: str
    blank: str


BOX = Lines("├─ ", "└─ ", "│  ", "   ")
PLAIN = Lines("|- ", "`- ", "|  ", "   ")
"""For a terminal that cannot show the others."""


def draw(items: Sequence[Document], now: float, paint: Paint, lines: Lines = BOX) -> str:
    """One line per session: id, application, status, age, and how long it may still live."""
    rows = list(_rows(items, lines))
    # Each piece of a branch is one column per character, so only the ids need measuring.
    heads = [
        (branch + name, len(branch) + width(name)) for branch, session in rows for name in [cell(session.get("id"))]
    ]
    tails = [_columns(session, now) for _, session in rows]
    first = max((columns for _, columns in heads), default=0)
    widths = [max(map(width, column)) for column in zip(*tails, strict=True)]
    drawn = []
    for (head, columns), tail in zip(heads, tails, strict=True):
        start = head + " " * (first - columns)
        status = tail[1]
        cells = [pad(text, wide) for text, wide in zip(tail, widths, strict=True)]
        if status == "terminated":
            drawn.append(paint.dim("  ".join([start, *cells]).rstrip()))
        else:
            cells[1] = paint.status(status, cells[1])
            drawn.append("  ".join([start, *cells]).rstrip())
    return "\n".join(drawn)


def life(session: Document, now: float) -> tuple[str, str]:
    """How old a session is (or was), and how long it may still live; for how long it has been asleep, if it is."""
    begun = instant(session.get("spawned_at")) or now
    ended = instant(session.get("terminated_at"))
    expires = instant(session.get("expires_at"))
    if ended is not None or session.get("status") == "terminated":
        return span((ended or now) - begun), "ended"
    left = "no end" if expires is None else f"{span(expires - now)} left"
    # Said in words as well as by the status and its colour: it looks alive, and will do nothing until it is resumed.
    asleep = instant(session.get("suspended_at")) if session.get("status") == "suspended" else None
    return span(now - begun), left if asleep is None else f"{left}, asleep {span(now - asleep)}"


def _columns(session: Document, now: float) -> tuple[str, str, str, str]:
    age, left = life(session, now)
    return cell(session.get("application_id")), cell(session.get("status")), age, left


def _rows(items: Sequence[Document], lines: Lines) -> Iterator[tuple[str, Document]]:
    """Each session with the branch before it, depth first, children in the order given. A stack, not
    recursion: a tree may be deeper than Python's."""
    known = {str(item.get("id")) for item in items}
    children: dict[str, list[Document]] = {}
    roots: list[Document] = []
    for item in items:
        parent = str(item.get("parent_id"))
        # A session whose parent is not in the answer is where the drawing begins.
        (children.setdefault(parent, []) if parent in known else roots).append(item)
    stack = [(root, "", "") for root in reversed(roots)]
    while stack:
        session, branch, below = stack.pop()
        yield branch, session
        stack += under(children.get(str(session.get("id")), []), below, lines)


def under(below: Sequence[T], indent: str, lines: Lines) -> list[tuple[T, str, str]]:
    """What to push for what stands below one line, each with its own branch and the indent of what is below it: the
    last one first, because a stack gives them back reversed."""
    pushed = []
    for at, child in enumerate(reversed(below)):
        turn, rest = (lines.corner, lines.blank) if at == 0 else (lines.tee, lines.bar)
        pushed.append((child, indent + turn, indent + rest))
    return pushed


def lines_for(encoding: str | None) -> Lines:
    return BOX if (encoding or "").lower().replace("-", "") in ("utf8", "utf16") else PLAIN
