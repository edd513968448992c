"""Output of paged lists and of single objects, shared by all nouns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from quarterdeck.cli.command_table import NUMBER, TEXT, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, format_duration, parse_timestamp, table
from quarterdeck.client.api import ApiClient, Document, Query, next_cursor, page_items

PAGING = (
    Option("--limit", "Items per page, 1 to 500 [default: 100].", NUMBER, field="limit"),
    Option("--cursor", "Cursor from an earlier page, to continue after that page.", TEXT, field="cursor"),
    Option("--all", "Read all pages."),
)


ColumnValue = Callable[[Document, float], object]


class Column(NamedTuple):
    header: str
    value: str | ColumnValue
    """The name of a field, or a function of the item and the current time."""


def print_list(context: Context, path: str, columns: Sequence[Column], empty: str, query: Query | None = None) -> None:
    """Print one page, or all pages with --all. If more items exist, a note says how to read them.

    `empty` is the text for an empty list. The query is built from the options, unless it is given.
    """
    page_query = context.query() if query is None else query
    server = context.server()
    pages = server.pages(path, page_query) if context.flag("all") else [server.get(path, page_query)]
    items: list[object] = []
    cursor: object = None
    cursor_field = "next_cursor"
    for page in pages:
        items += page_items(page)
        cursor = next_cursor(page)
        cursor_field = "nextCursor" if "nextCursor" in page else cursor_field
    document: Document = {"items": items, cursor_field: cursor}
    context.show(document, lambda _: format_table(context, columns, page_items(document), empty))
    if cursor:
        context.hint(f"More items exist. Use --all, or --cursor {cell(cursor)} for the next page.")


def load_all(
    server: ApiClient, path: str, field: str = "items", limit: int = 500, **query: str | bool
) -> list[Document]:
    """Load the items of all pages of a list. `field` is the field with the items, and `limit` the page size."""
    return [item for page in server.pages(path, {**query, "limit": limit}) for item in page_items(page, field)]


def print_items(context: Context, path: str, columns: Sequence[Column], empty: str) -> None:
    """Print a list that has no pages."""
    context.send("GET", path, lambda page: format_table(context, columns, page_items(page), empty))


def format_table(
    context: Context, columns: Sequence[Column], items: Sequence[Document], empty: str | None = None
) -> str:
    """Format one row per item. `empty` is the text for an empty list, instead of a table without rows."""
    if not items and empty is not None:
        return empty
    now = time.time()
    rows = [[item.get(value) if isinstance(value, str) else value(item, now) for _, value in columns] for item in items]
    return table([column.header for column in columns], rows, context.styler)


def fields_and_table(
    context: Context, pairs: Iterable[tuple[str, object]], columns: Sequence[Column], items: Sequence[Document]
) -> str:
    """Format the fields of an object and, if it has items, a table of them."""
    text = fields(pairs, context.styler)
    return f"{text}\n\n{format_table(context, columns, items)}" if items else text


def nested(document: Document, name: str) -> Document:
    """Return the object in a field, or an empty one if the field has none."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def time_ago(name: str) -> ColumnValue:
    """Return a column value: the age of the time in a field, such as "5m ago"."""
    return lambda item, now: ago(item.get(name), now)


def age(name: str) -> ColumnValue:
    """Return a column value: the age of the time in a field, such as "5m"."""
    return _time_column(name, lambda seconds: format_duration(-seconds))


def time_from_now(name: str) -> ColumnValue:
    """Return a column value: the time in a field, such as "in 2h" or "5m ago"."""
    return _time_column(name, relative_time)


def _time_column(name: str, render: Callable[[float], str]) -> ColumnValue:
    """`render` gets the seconds from now until the time. The cell is empty if the field has no time."""

    def format_time(item: Document, now: float) -> str | None:
        timestamp = parse_timestamp(item.get(name))
        return None if timestamp is None else render(timestamp - now)

    return format_time


def field_text(name: str) -> Callable[[Document], str]:
    """Return a renderer that prints one field of a document."""
    return lambda document: cell(document.get(name))


def field_lines(context: Context, *names: str) -> Callable[[Document], str]:
    """Return a renderer that prints some fields of a document, one per line, or all fields that are not null."""
    return lambda document: fields(
        [(name, document.get(name)) for name in names]
        or [(name, value) for name, value in document.items() if value is not None],
        context.styler,
    )


def print_details(context: Context, path: str, *excluded_fields: str) -> None:
    context.send(
        "GET", path, lambda document: fields(detail_pairs(document, time.time(), *excluded_fields), context.styler)
    )


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
