"""Output of paged lists and of single objects, shared by all nouns."""

from __future__ import annotations

import time
from collections.abc import Callable

from quarterdeck.cli.command_table import NUMBER, TEXT, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, format_duration, parse_timestamp
from quarterdeck.client.api import Document, Query, next_cursor, page_items

PAGING = (
    Option("--limit", "Items per page, 1 to 500 [default: 100].", NUMBER),
    Option("--cursor", "Cursor from an earlier page, to continue after that page.", TEXT),
    Option("--all", "Read all pages."),
)


def print_list(context: Context, path: str, query: Query, render: Callable[[Context, list[Document]], str]) -> int:
    """Print one page, or all pages with --all. If more items exist, a note says how to read them."""
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
        context.note(f"More items exist. Use --all, or --cursor {cell(cursor)} for the next page.")
    return 0


def print_details(context: Context, path: str, *excluded_fields: str) -> int:
    item = context.server().get(path)
    context.show(item, lambda document: fields(detail_pairs(document, time.time(), *excluded_fields), context.styler))
    return 0


def detail_pairs(document: Document, now: float, *excluded_fields: str) -> list[tuple[str, object]]:
    """Return the fields that are not null or excluded. Times get a relative time too, such as "5m ago" or "in 2h"."""
    pairs: list[tuple[str, object]] = []
    for name, value in document.items():
        if name in excluded_fields or value is None:
            continue
        timestamp = parse_timestamp(value) if name.endswith(("_at", "At")) else None
        pairs.append((name, value if timestamp is None else f"{cell(value)} ({relative_time(timestamp - now)})"))
    return pairs


def relative_time(seconds: float) -> str:
    return f"in {format_duration(seconds)}" if seconds > 0 else f"{format_duration(-seconds)} ago"


def ago(value: object, now: float) -> str | None:
    """Format the age of a time, such as "5m ago". Returns None if the value is not a time."""
    timestamp = parse_timestamp(value)
    return None if timestamp is None else f"{format_duration(now - timestamp)} ago"
