"""Delegations that hang together, drawn. Pure: edges, time and colours are arguments.

A line is an edge, told by the session it leads to. It stands under the edge it is derived from, or under the session
that lends it if that edge is not shown: so what stands below a line falls with it. A session that several edges lead
to has a line for each of them; all but the first say `also above`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quarterdeck.cli.output import Paint, cell, instant, pad, span, width
from quarterdeck.cli.session_tree import BOX, Lines, under
from quarterdeck.client.api import Document

AGAIN = "(also above)"


class Row(NamedTuple):
    """A line: the branch before it, the session it stands for, and the edge that leads there, if one does."""

    branch: str
    session: str
    edge: Document | None = None


def draw(edges: Sequence[Document], marked: str, now: float, paint: Paint, lines: Lines = BOX) -> str:
    """`marked` is the edge or session that was asked about: it stands out."""
    rows = list(_rows(sorted(edges, key=_name), marked, lines))
    heads = [row.branch + cell(row.session) for row in rows]
    tails = [_columns(row.edge, now) for row in rows]
    first = max(map(width, heads), default=0)
    widths = [max(map(width, column)) for column in zip(*tails, strict=True)]
    drawn: list[str] = []
    seen: set[str] = set()
    for row, head, tail in zip(rows, heads, tails, strict=True):
        start = pad(head, first)
        if marked in (row.session, row.edge and _name(row.edge)):
            start = paint.bold(start)
        cells = [pad(text, wide) for text, wide in zip(tail, widths, strict=True)]
        cells[1] = paint.status(tail[1], cells[1])
        again = paint.dim(AGAIN) if row.session in seen else ""
        drawn.append("  ".join([start, *cells, again]).rstrip())
        seen.add(row.session)
    return "\n".join(drawn)


def hops(edge: Document) -> str:
    """How often it may still be passed on."""
    count = edge.get("max_hops")
    if count is None:
        return "freely"
    return "last hop" if count == 0 else "1 hop more" if count == 1 else f"{cell(count)} hops more"


def life(edge: Document, now: float) -> str:
    ended, expires = instant(edge.get("ended_at")), instant(edge.get("expires_at"))
    if edge.get("status") != "active":
        return "ended" if ended is None else f"ended {span(now - ended)} ago"
    return "no end" if expires is None else f"{span(expires - now)} left"


def _columns(edge: Document | None, now: float) -> tuple[str, str, str, str, str]:
    """What is lent, its state, how far it may be passed on, how long it lasts, and its name."""
    if edge is None:
        return "", "", "", "", ""
    scopes, resources = cell(edge.get("scopes")), edge.get("resources")
    lent = scopes if resources is None else f"{scopes} for {cell(resources)}"
    return lent, cell(edge.get("status")), hops(edge), life(edge, now), _name(edge)


def _rows(edges: Sequence[Document], marked: str, lines: Lines) -> Iterator[Row]:
    """Depth first. A stack, not recursion: a chain may be longer than Python's."""
    known = {_name(edge) for edge in edges}
    derived: dict[str, list[Document]] = {}
    lent: dict[str, list[Document]] = {}
    for edge in edges:
        parent = str(edge.get("parent_edge_id"))
        if parent in known:
            derived.setdefault(parent, []).append(edge)
        else:
            lent.setdefault(str(edge.get("source_session_id")), []).append(edge)
    for lender, first in (lent or {marked: []}).items():
        yield Row("", lender)
        stack = under(first, "", lines)
        while stack:
            edge, branch, below = stack.pop()
            yield Row(branch, str(edge.get("target_session_id")), edge)
            stack += under(derived.get(_name(edge), []), below, lines)


def _name(edge: Document) -> str:
    return cell(edge.get("id"))
