"""Delegations around one of them or around a session, drawn as a tree. Pure: edges, time and colours are arguments.

Sessions are the nodes and each edge is a line, drawn under the session that lends. A session that several edges lead
to is drawn under each of them, and what it lends itself only the first time: the later ones say `drawn above`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quarterdeck.cli.output import Paint, cell, instant, pad, span, width
from quarterdeck.cli.tree import BOX, Lines
from quarterdeck.client.server import Document

AGAIN = "(drawn above)"


class Row(NamedTuple):
    """A line: the branch before it, the session it stands for, and the edge that leads there, if one does."""

    branch: str
    session: str
    edge: Document | None = None
    again: bool = False


def draw(edges: Sequence[Document], marked: str, now: float, paint: Paint, lines: Lines = BOX) -> str:
    """`marked` is the edge or session that was asked about: it stands out."""
    rows = list(_rows(edges, marked, lines))
    heads = [row.branch + cell(row.session) for row in rows]
    tails = [_columns(row.edge, now) for row in rows]
    first = max(map(width, heads), default=0)
    widths = [max(map(width, column)) for column in zip(*tails, strict=True)]
    drawn = []
    for row, head, tail in zip(rows, heads, tails, strict=True):
        start = pad(head, first)
        if marked in (row.session, row.edge and row.edge.get("id")):
            start = paint.bold(start)
        status = tail[1]
        cells = [pad(text, wide) for text, wide in zip(tail, widths, strict=True)]
        cells[1] = paint.status(status, cells[1])
        drawn.append("  ".join([start, *cells, AGAIN if row.again else ""]).rstrip())
    return "\n".join(drawn)


def _columns(edge: Document | None, now: float) -> tuple[str, str, str, str, str]:
    """What is lent, its state, how far it may be passed on, how long it lasts, and its name."""
    if edge is None:
        return "", "", "", "", ""
    scopes = cell(edge.get("scopes"))
    resources = edge.get("resources")
    lent = scopes if resources is None else f"{scopes} for {cell(resources)}"
    return lent, cell(edge.get("status")), hops(edge), life(edge, now), cell(edge.get("id"))


def hops(edge: Document) -> str:
    count = edge.get("max_hops")
    return "last hop" if count == 0 else "1 hop more" if count == 1 else f"{cell(count)} hops more"


def life(edge: Document, now: float) -> str:
    ended, expires = instant(edge.get("ended_at")), instant(edge.get("expires_at"))
    if edge.get("status") != "active":
        return "ended" if ended is None else f"ended {span(now - ended)} ago"
    return "no end" if expires is None else f"{span(expires - now)} left"


def _rows(edges: Sequence[Document], marked: str, lines: Lines) -> Iterator[Row]:
    """Depth first, edges in the order given. A stack, not recursion: a chain may be longer than Python's."""
    lent: dict[str, list[Document]] = {}
    reached: set[str] = set()
    for edge in edges:
        lent.setdefault(_source(edge), []).append(edge)
        reached.add(_target(edge))
    # Whoever lends and was lent nothing that is shown: there the drawing begins.
    roots = [source for source in lent if source not in reached] or [*lent][:1] or [marked]
    drawn: set[str] = set()
    for root in roots:
        yield Row("", root)
        drawn.add(root)
        stack = _under(lent.get(root, []), "", lines)
        while stack:
            edge, branch, below = stack.pop()
            session = _target(edge)
            yield Row(branch, session, edge, session in drawn)
            if session not in drawn:
                drawn.add(session)
                stack += _under(lent.get(session, []), below, lines)


def _under(edges: Sequence[Document], indent: str, lines: Lines) -> list[tuple[Document, str, str]]:
    """What to push for the edges of one session: the last one first, because a stack gives them back reversed."""
    pushed = []
    for at, edge in enumerate(reversed(edges)):
        turn, rest = (lines.corner, lines.blank) if at == 0 else (lines.tee, lines.bar)
        pushed.append((edge, indent + turn, indent + rest))
    return pushed


def _source(edge: Document) -> str:
    return str(edge.get("source_session_id"))


def _target(edge: Document) -> str:
    return str(edge.get("target_session_id"))
