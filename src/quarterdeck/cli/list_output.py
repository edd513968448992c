"""Lists that come in pages, and how one thing is told in full: the same for every noun."""

from __future__ import annotations

import time
from collections.abc import Callable

from quarterdeck.cli.command_table import NUMBER, TEXT, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, instant, span
from quarterdeck.client.api import Document, Query, cursor_of, items_of

PAGES = (
    Option("--limit", "How many on a page, 1 to 500 [default: 100].", NUMBER),
    Option("--cursor", "Begin where an earlier page ended.", TEXT),
    Option("--all", "Every page."),
)


def show_list(context: Context, path: str, query: Query, draw: Callable[[Context, list[Document]], str]) -> int:
    """One page, or all of them; whoever sees a page is told that there are more."""
    asked = {**query, "limit": context.number("limit"), "cursor": context.text("cursor")}
    server = context.server()
    pages = server.pages(path, asked) if context.flag("all") else [server.get(path, asked)]
    items: list[object] = []
    cursor: object = None
    name = "next_cursor"
    for page in pages:
        items += items_of(page)
        cursor = cursor_of(page)
        name = "nextCursor" if "nextCursor" in page else name
    context.show({"items": items, name: cursor}, lambda told: draw(context, items_of(told)))
    if cursor and not context.as_json:
        context.note(f"there are more: --all, or --cursor {cell(cursor)}")
    return 0


def show_one(context: Context, path: str, *left_out: str) -> int:
    found = context.server().get(path)
    context.show(found, lambda told: fields(in_full(told, time.time(), *left_out), context.paint))
    return 0


def in_full(document: Document, now: float, *left_out: str) -> list[tuple[str, object]]:
    """As the server tells it, without what says nothing, and with instants also as people say them."""
    pairs: list[tuple[str, object]] = []
    for name, value in document.items():
        if name in left_out or value is None:
            continue
        at = instant(value) if name.endswith(("_at", "At")) else None
        pairs.append((name, value if at is None else f"{cell(value)} ({when(at - now)})"))
    return pairs


def when(seconds: float) -> str:
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def ago(value: object, now: float) -> str | None:
    """How long an instant is past; None where there is none."""
    at = instant(value)
    return None if at is None else f"{span(now - at)} ago"
