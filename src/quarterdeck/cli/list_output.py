"""Lists that come in pages, and how one thing is told in full: the same for every noun."""

from __future__ import annotations

import time
from collections.abc import Callable

from quarterdeck.cli.command_table import NUMBER, TEXT, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, instant, span
from quarterdeck.client.api import Document, Query, next_cursor, page_items

PAGING = (
    Option("--limit", "How many on a page, 1 to 500 [default: 100].", NUMBER),
    Option("--cursor", "Begin where an earlier page ended.", TEXT),
    Option("--all", "Every page."),
)


def print_list(context: Context, path: str, query: Query, render: Callable[[Context, list[Document]], str]) -> int:
    """One page, or all of them; whoever sees a page is told that there are more."""
    page_query = {**query, "limit": context.number("limit"), "cursor": context.text("cursor")}
    server = context.server()
    pages = server.pages(path, page_query) if context.flag("all") else [server.get(path, page_query)]
    items: list[object] = []
    cursor: object = None
    cursor_field = "next_cursor"
    for page in pages:
        items += page_items(page)
        cursor = next_cursor(page)
        cursor_field = "nextCursor" if "nextCursor" in page else cursor_field
    context.show({"items": items, cursor_field: cursor}, lambda document: render(context, page_items(document)))
    if cursor and not context.as_json:
        context.note(f"there are more: --all, or --cursor {cell(cursor)}")
    return 0


def print_details(context: Context, path: str, *excluded: str) -> int:
    found = context.server().get(path)
    context.show(found, lambda document: fields(detail_pairs(document, time.time(), *excluded), context.styler))
    return 0


def detail_pairs(document: Document, now: float, *excluded: str) -> list[tuple[str, object]]:
    """As the server tells it, without what says nothing, and with instants also as people say them."""
    pairs: list[tuple[str, object]] = []
    for name, value in document.items():
        if name in excluded or value is None:
            continue
        timestamp = instant(value) if name.endswith(("_at", "At")) else None
        pairs.append((name, value if timestamp is None else f"{cell(value)} ({relative_time(timestamp - now)})"))
    return pairs


def relative_time(seconds: float) -> str:
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def ago(value: object, now: float) -> str | None:
    """How long an instant is past; None where there is none."""
    timestamp = instant(value)
    return None if timestamp is None else f"{span(now - timestamp)} ago"
