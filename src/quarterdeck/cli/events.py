"""The log of what happened: one row per transition, in the order of their commits."""

from __future__ import annotations

import json
import sys

from quarterdeck.cli.command_table import NUMBER, TEXT, Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import NOTHING, cell, pad, table
from quarterdeck.client.api import Document, Query, items_of
from quarterdeck.client.discovery import again
from quarterdeck.client.event_stream import Follower, Message, NobodyReads


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
        pass  # whoever lists does not pay for it

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


_COLUMNS = (("pos", 6), ("at", 24), ("type", 17), ("subject", 36), ("actor", 1))
"""As wide as they usually are: a line must be printed before the next is known."""


def follow(context: Context, query: Query, limit: int | None) -> int:
    """Prints until it is interrupted, or until so many have been printed."""
    follower = Follower(
        lambda: again(context.where, context.environ), context.in_zone("events"), query, context.note, _output()
    )
    left = limit
    try:
        for message in follower.messages(context.server()):
            told = _document(message)
            if message.event == "reset":
                _say_reset(context, told)
            else:
                context.write(message.data if context.as_json else line_of(told))
                left = None if left is None else left - 1
            sys.stdout.flush()
            if left == 0:
                break
    except NobodyReads:
        raise BrokenPipeError from None
    return 0


def line_of(event: Document) -> str:
    begun, ended = event.get("from"), event.get("to")
    told = [pad(cell(event.get(name)), width) for name, width in _COLUMNS]
    move = "" if begun is None and ended is None else f"{cell(begun)} → {cell(ended)}"
    return "  ".join([*told, move]).rstrip()


def _say_reset(context: Context, told: Document) -> None:
    floor, head = cell(told.get("floor")), cell(told.get("head"))
    context.note(
        f"that position is not in the log any more, or not in this one: going on from {floor} (the log is at {head})"
    )
    if context.as_json:
        context.write(json.dumps({"type": "reset", **told}))


def _document(message: Message) -> Document:
    try:
        told: object = json.loads(message.data)
    except (ValueError, RecursionError):
        told = None
    return told if isinstance(told, dict) else {"pos": message.id, "type": message.event, "subject": NOTHING}


def _output() -> int | None:
    """Where the lines go, if that can be waited on."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None
