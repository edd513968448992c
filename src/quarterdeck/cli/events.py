"""The log of what happened: one row per transition, in the order of their commits."""

from __future__ import annotations

from quarterdeck.cli.command_table import NUMBER, TEXT, Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, table
from quarterdeck.client.api import Document, items_of


def noun() -> Noun:
    listing = Command(("events", "list"), "List events, oldest first.", list_, options=_LIST, is_default=True)
    return Noun((listing,), {"events": "What happened in a zone; alone it is `qd events list`."})


_LIST = (
    Option("--follow", "Go on printing what happens, from now or from --after.", short="-f"),
    Option("--after", "Only those after this position.", NUMBER),
    Option("--limit", "How many at most.", NUMBER),
    Option("--type", "Only this type; may be repeated.", TEXT, many=True),
    Option("--subject", "Only those about this subject.", TEXT),
)


def list_(context: Context) -> int:
    types = ",".join(str(one) for one in context.many("type"))
    query = {"after": context.number("after"), "types": types or None, "subject": context.text("subject")}
    limit = context.number("limit")
    if context.flag("follow") and limit != 0:
        from quarterdeck.cli.follow import follow  # whoever lists does not pay for it

        return follow(context, query, limit)
    query["limit"] = limit
    page = context.server().get(context.in_zone("events"), query)
    context.show(page, lambda told: _table(context, items_of(told)))
    if page.get("next_after") is not None and not context.as_json:
        context.note(f"there may be more: --after {cell(page['next_after'])}")
    return 0


def _table(context: Context, events: list[Document]) -> str:
    if not events:
        return f"no such events in zone {context.zone}"
    named = ("pos", "at", "type", "subject", "actor")
    rows = [[*(event.get(name) for name in named), _move(event)] for event in events]
    return table(("POS", "AT", "TYPE", "SUBJECT", "ACTOR", "MOVE"), rows, context.paint)


def _move(event: Document) -> str:
    begun, ended = event.get("from"), event.get("to")
    return "" if begun is None and ended is None else f"{cell(begun)} → {cell(ended)}"
