"""Draws delegation graphs. Pure: edges, time and colors are arguments.

Each line shows one edge and starts with its target session. The line is nested under the edge that it is derived from,
or under its source session if that parent edge is not drawn. So revoking an edge revokes all edges nested under it. A
session with several inbound edges has a line for each; all but the first are marked `(also above)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quarterdeck.cli.output import TextStyler, cell, format_duration, pad, parse_timestamp, width
from quarterdeck.cli.session_tree import UNICODE_GLYPHS, TreeGlyphs, walk
from quarterdeck.client.api import Document

ALREADY_SHOWN = "(also above)"


class Row(NamedTuple):
    """A line: the branch drawn before it, its session, and the edge to that session. A source session has no edge."""

    branch: str
    session: str
    edge: Document | None = None


def draw(
    edges: Sequence[Document], highlighted_id: str, now: float, styler: TextStyler, glyphs: TreeGlyphs = UNICODE_GLYPHS
) -> str:
    """Draw the edges. `highlighted_id` is the id of the edge or session to print in bold."""
    rows = list(_graph_rows(sorted(edges, key=_edge_id), highlighted_id, glyphs))
    heads = [row.branch + cell(row.session) for row in rows]
    tails = [_format_columns(row.edge, now) for row in rows]
    head_width = max(map(width, heads), default=0)
    widths = [max(map(width, column)) for column in zip(*tails, strict=True)]
    output_lines: list[str] = []
    seen: set[str] = set()
    for row, head, tail in zip(rows, heads, tails, strict=True):
        start = pad(head, head_width)
        if highlighted_id in (row.session, row.edge and _edge_id(row.edge)):
            start = styler.bold(start)
        cells = [pad(text, column_width) for text, column_width in zip(tail, widths, strict=True)]
        cells[1] = styler.color_by_status(tail[1], cells[1])
        suffix = styler.dim(ALREADY_SHOWN) if row.session in seen else ""
        output_lines.append("  ".join([start, *cells, suffix]).rstrip())
        seen.add(row.session)
    return "\n".join(output_lines)


def format_hops(edge: Document) -> str:
    """Format how many delegations may still follow the edge in its chain."""
    count = edge.get("max_hops")
    if count is None:
        return "unlimited hops"
    return "no more hops" if count == 0 else "1 more hop" if count == 1 else f"{cell(count)} more hops"


def format_expiry(edge: Document, now: float) -> str:
    ended_at, expires_at = parse_timestamp(edge.get("ended_at")), parse_timestamp(edge.get("expires_at"))
    if edge.get("status") != "active":
        return "ended" if ended_at is None else f"ended {format_duration(now - ended_at)} ago"
    return "no expiry" if expires_at is None else f"{format_duration(expires_at - now)} left"


def _format_columns(edge: Document | None, now: float) -> tuple[str, str, str, str, str]:
    """Format the scopes, status, hops, expiry and id of the edge."""
    if edge is None:
        return "", "", "", "", ""
    scopes, resources = cell(edge.get("scopes")), edge.get("resources")
    scope_text = scopes if resources is None else f"{scopes} for {cell(resources)}"
    return scope_text, cell(edge.get("status")), format_hops(edge), format_expiry(edge, now), _edge_id(edge)


def _graph_rows(edges: Sequence[Document], highlighted_id: str, glyphs: TreeGlyphs) -> Iterator[Row]:
    """Yield all lines, depth first."""
    edge_ids = {_edge_id(edge) for edge in edges}
    children_by_edge: dict[str, list[Document]] = {}
    root_edges_by_source: dict[str, list[Document]] = {}
    for edge in edges:
        parent = str(edge.get("parent_edge_id"))
        if parent in edge_ids:
            children_by_edge.setdefault(parent, []).append(edge)
        else:
            root_edges_by_source.setdefault(str(edge.get("source_session_id")), []).append(edge)
    for source, root_edges in (root_edges_by_source or {highlighted_id: []}).items():
        yield Row("", source)
        for branch, edge in walk(root_edges, lambda edge: children_by_edge.get(_edge_id(edge), ()), glyphs):
            yield Row(branch, str(edge.get("target_session_id")), edge)


def _edge_id(edge: Document) -> str:
    return cell(edge.get("id"))
